/* The handles that wait in a take on one queue: the table of section >>waiters
 * and give_role. models.txt has the bounds of each run. Each step is atomic, as
 * in the program, and stands for the functions that its comment names.
 *
 * Time goes on in ticks. A tick is the slack of a standby (0.3 to 0.6 s) and
 * also the time between the polls of a handle that hears no messages. CAP ticks
 * are options.max_wait_ms. A tick ends when no program that runs has anything
 * to do, however long the messages and replies before that took.
 *
 * All runs show that items which are due are taken, while some handle waits in a
 * program that runs: the ticks that begin with such an item are BOUND in all. A
 * tick that begins without a waiting handle does not count.
 *
 * Not in the model: pushes by other programs and client tracking, leases,
 * several items for one take, and errors of the waiters' key. */

#ifndef HANDLES
#define HANDLES 3
#endif
#ifndef ITEMS
#define ITEMS 2
#endif
#ifndef TICKS
#define TICKS 4
#endif
#ifndef CAP
#define CAP 3
#endif
#ifndef TAKES
#define TAKES 4 /* the most takes that begin */
#endif
#ifndef LEAVES
#define LEAVES 1 /* takes that end at their timeout */
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef FREEZES
#define FREEZES 0
#endif
#ifndef LOSSES
#define LOSSES 0 /* lost subscribers */
#endif
#ifndef BOUND
#define BOUND 0
#endif
#ifndef BREAK
#define BREAK 0 /* the number of a fault, which a run must notice */
#endif
/* SLEEPERS   a handle that follows a leader may become a sleeper */

#define NEVER 99
#define QUEUE 8 /* the most messages that wait in a socket */

/* delayq_waiter_role */
#define NEW 0
#define NONE 1
#define ALONE 2
#define LEADER 3
#define STANDBY 4
#define SLEEPER 5
#define NO_ROLE 9 /* a reply without a role: the take had no waiters' key */

/* dq_waiters_claim */
#define CLAIMS_NONE 0
#define CLAIMS_NEW 1
#define CLAIMS_LEADER 2
#define CLAIMS_STANDBY 3
#define CLAIMS_CHECK 4
#define CLAIMS_SLEEPER 5

/* messages, in the order of the socket */
mtype = { DUE, LEAD, ENTER, CALL, CHANNELS }

typedef Handle {
    bool lives, frozen, begun;
    bool waits;     /* its program is in a take: will_wait */
    bool leaves;    /* the take in flight is that of dq_take_leave */
    byte role;
    byte next;      /* next_poll_us */
    byte due, last; /* delayq_waiter.due_us (NEVER: 0), take_us */
    byte called;    /* enter_us: 0, 1 before the take in flight, 2 after it */
    bool led;       /* lead_us is not before the take in flight was sent */
    byte poll;      /* 0; 1 and 2: a take in flight, 2: its reply */
    byte sent;      /* when that take was sent */
    byte claim;     /* what that take claims; NO_ROLE: it is not a waiter's */
    bool got;       /* the reply: an item, */
    byte coming;    /* the due time of the next one, */
    byte given;     /* a role */
    /* the channel of the queue, and the two of waiters: confirmed, wanted,
     * known to the server */
    bool hears, wants, known, joined, join_wanted, join_known
};
Handle h[HANDLES];
chan socket[HANDLES] = [QUEUE] of { mtype, byte };

/* the server: the items, and the waiters' set */
byte item[ITEMS]; /* the due time; NEVER: taken, or not offered yet */
byte offered, time, late, takes, leaves, kills, freezes, losses;
byte set[HANDLES];   /* 0, STANDBY, SLEEPER, LEADER */
byte since[HANDLES]; /* when it got this role */

byte i, j, k, n, leader, soon, more, live, old;
bool follows, was_any;

inline first_item() { /* sets k to the item that is due first, n to the time */
    k = 0;
    n = NEVER;
    i = 0;
    do
    :: i < ITEMS ->
        if
        :: item[i] < n -> k = i; n = item[i]
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

#define lower(x, t) x = (x > (t) -> (t) : x)
#define at(t) ((t) > TICKS -> NEVER : (t)) /* after the end of the run */

inline message(to, kind, t) {
    printf("  message to %d: %e %d\n", to, kind, t);
    assert(nfull(socket[to]));
    socket[to]!kind(t)
}

/* --- the server --- */

/* PUBLISH on the queue's channel */
inline publish_due(t) {
    i = 0;
    do
    :: i < HANDLES ->
        if
        :: h[i].known -> message(i, DUE, t)
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

/* PUBLISH on the waiters' channel */
inline publish_call() {
    i = 0;
    do
    :: i < HANDLES ->
        if
        :: h[i].join_known -> message(i, CALL, 0)
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

/* call_all */
inline call_all() {
    i = 0;
    do
    :: i < HANDLES -> set[i] = 0; since[i] = 0; i++
    :: else -> break
    od;
    publish_call()
}

/* The place of a member in the sorted set, the leader last */
#define place(x) (set[x] == 0 -> 250 : \
    (set[x] == STANDBY -> 0 : (set[x] == SLEEPER -> 80 : 160)) + \
    since[x] * HANDLES + x)

/* hand_over: `more` is the number of waiters to notify */
inline hand_over() {
    leader = NEVER;
    do
    :: more > 0 ->
        j = 0;
        i = 1;
        do
        :: i < HANDLES ->
            if
            :: place(i) < place(j) -> j = i
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        if
        :: set[j] == 0 -> break
        :: else
        fi;
        set[j] = 0;
        since[j] = 0;
        if
        :: h[j].join_known && leader == NEVER ->
            leader = j;
            more--;
#if BREAK != 1 /* else the next leader is not told */
            message(j, LEAD, soon)
#endif
        :: h[j].join_known && leader != NEVER ->
            more--;
            message(j, ENTER, 0)
        :: else
        fi
    :: else -> break
    od;
    j = 0;
    if
    :: leader != NEVER -> set[leader] = LEADER; since[leader] = time
    :: else
    fi
}

/* The script of a take: dq_lua_take_usual, give_role. `m` is the handle. */
inline serve(m) {
    first_item();
    h[m].got = n <= time && !h[m].leaves;
    old = n; /* the due time of the item that is taken */
    if
    :: h[m].got -> item[k] = NEVER
    :: else
    fi;
    first_item();
    h[m].coming = (n <= time -> time : n);
    h[m].given = NO_ROLE;
    if
    :: h[m].claim != NO_ROLE -> give_role(m)
    :: else
    fi;
    h[m].poll = 2;
    printf("%d takes at %d, claims %d: item %d, next %d, role %d\n", m, time,
           h[m].claim, h[m].got, h[m].coming, h[m].given);
    k = 0; n = 0; old = 0; soon = 0; more = 0; leader = 0; live = 0;
    follows = false; was_any = false
}

/* read_waiters, role_among_waiters */
inline give_role(m) {
    soon = (n == NEVER -> at(time + CAP) : h[m].coming);
#if BREAK == 6
    soon = at(time + CAP); /* the next leader waits, though an item is due */
#endif
    more = 0;
    leader = NEVER;
    live = 0;
    was_any = false;
    i = 0;
    do
    :: i < ITEMS ->
        if
        :: item[i] <= time -> more++
        :: else
        fi;
        i++
    :: else -> break
    od;
    if
    :: more == 0 || !h[m].got -> more = 1
    :: else
    fi;
    i = 0;
    do
    :: i < HANDLES ->
        if
        :: set[i] == LEADER -> leader = i
        :: else
        fi;
        was_any = was_any || set[i] > 0;
        live = live + h[i].join_known;
        i++
    :: else -> break
    od;
    i = 0;
    follows = h[m].claim >= CLAIMS_STANDBY;
    if
    :: h[m].got || h[m].leaves -> leave_waiters(m); h[m].given = 0
    :: else ->
        if
        :: live <= 1 ->
            do
            :: i < HANDLES -> set[i] = 0; since[i] = 0; i++
            :: else -> break
            od;
            i = 0;
            h[m].given = 1
        :: else ->
            if
            :: leader != NEVER && leader != m && h[leader].join_known ->
                follow(m)
            :: else -> become_leader(m); h[m].given = 2
            fi
        fi
    fi
}

inline leave_waiters(m) {
    set[m] = 0;
    since[m] = 0;
    if
    :: leader == m && BREAK != 5 -> hand_over() /* else it leaves silently */
    :: else ->
        follows = h[m].got && old < time && follows; /* late, and it follows */
        if
        :: (leader != NEVER && h[m].got && old < time &&
            since[leader] < time) ||
           (leader == NEVER && (follows || h[m].claim == CLAIMS_LEADER)) ->
#if BREAK != 2 /* else a frozen leader remains one */
            call_all()
#endif
            skip
        :: else
        fi
    fi
}

inline follow(m) {
    if
    :: h[m].given = 3
#ifdef SLEEPERS
    :: h[m].given = 4
#endif
    fi;
    if
    :: set[m] != h[m].given + 1 ||
       !(follows && ((h[m].given == 4) == (h[m].claim == CLAIMS_SLEEPER))) ->
        set[m] = h[m].given + 1;
        since[m] = time
    :: else
    fi;
    if
    :: h[m].claim == CLAIMS_CHECK -> publish_due(soon)
    :: else
    fi
}

/* lead */
inline become_leader(m) {
    if
    :: leader != m ->
        if
        :: leader != NEVER -> set[leader] = 0; since[leader] = 0
        :: else
        fi;
        set[m] = LEADER;
        since[m] = time;
        if
        :: (!was_any && (follows || h[m].claim == CLAIMS_LEADER)) ||
           h[m].claim == CLAIMS_NEW ->
            publish_call()
        :: else
        fi
    :: else
    fi
}

/* --- a handle --- */

/* dq_waiters_in_take */
#define in_take(m) (h[m].role >= LEADER || \
    (h[m].waits && h[m].role <= NONE && h[m].joined))

/* dq_waiters_latest */
#define latest(m) (time + (h[m].hears -> CAP : 1))

/* dq_waiters_stand_by */
inline stand_by(m, t) {
    k = t;
    lower(k, latest(m));
#if BREAK == 4
    k = h[m].last; /* a standby trusts its leader */
#endif
    k = (k < time -> time : k) + 1;
    lower(k, h[m].last);
    k = at(k);
    if
    :: h[m].called > 0 -> lower(h[m].next, k)
    :: else -> h[m].next = k
    fi;
    k = 0
}

/* dq_waiters_on_message */
inline on_due(m, t) {
    if
    :: h[m].role == SLEEPER
    :: h[m].role == STANDBY && h[m].poll == 0 ->
        h[m].due = t;
        stand_by(m, t)
    :: else -> lower(h[m].next, t)
    fi
}

/* dq_waiters_on_channel, for the waiters' channel and the handle's own */
inline on_joined(m) {
    h[m].joined = true;
    if
    :: h[m].role <= NONE && in_take(m) -> lower(h[m].next, time)
    :: else
    fi
}

/* dq_waiters_on_promotion */
inline on_lead(m, t) {
    if
    :: h[m].poll > 0 -> h[m].led = true; lower(h[m].next, t)
    :: else
    fi;
    if
    :: h[m].role >= LEADER ->
        h[m].role = LEADER;
        h[m].due = 0;
        h[m].last = 0;
        if
        :: h[m].poll == 0 -> h[m].next = t
        :: else
        fi;
        lower(h[m].next, latest(m));
        h[m].next = at(h[m].next);
        if
        :: h[m].called > 0 -> lower(h[m].next, time)
        :: else
        fi
    :: else
    fi
}

/* dq_waiters_on_call */
inline on_call(m) {
    if
    :: h[m].role == ALONE -> h[m].role = NONE
    :: else
    fi;
    if
    :: h[m].waits -> h[m].called = 2; lower(h[m].next, time)
    :: else
    fi
}

/* dq_sched_on_reply, dq_waiters_on_reply */
inline on_reply(m) {
    k = h[m].sent + (h[m].hears -> CAP : 1);
    lower(k, h[m].coming);
    lower(h[m].next, k);
    h[m].next = at(h[m].next);
    h[m].poll = 0;
    old = h[m].role;
    if
    :: h[m].given > 0 && h[m].given != NO_ROLE && !h[m].joined -> h[m].given = 0
    :: else
    fi;
    if
    :: h[m].given > 0 && h[m].given != NO_ROLE -> h[m].role = h[m].given + 1
    :: (h[m].given == 0 && h[m].role > NONE) ||
       (h[m].got && h[m].role >= LEADER) -> h[m].role = NONE
    :: else
    fi;
    if
    :: h[m].given != NO_ROLE && h[m].called == 1 -> h[m].called = 0
    :: else
    fi;
    if
    :: h[m].called > 0 && h[m].role == ALONE -> h[m].role = NONE
    :: else
    fi;
#if BREAK != 3 /* else an older reply ends the promotion */
    if
    :: h[m].led && h[m].role > LEADER -> h[m].role = LEADER
    :: else
    fi;
#endif
    if
    :: h[m].role == STANDBY ->
        h[m].last = at(h[m].sent + CAP);
        h[m].due = h[m].next;
        if
        :: h[m].coming == NEVER && h[m].due >= h[m].last -> h[m].due = NEVER
        :: else
        fi;
        n = (h[m].due == NEVER -> h[m].last : h[m].due);
        stand_by(m, n);
        n = 0
    :: h[m].role == SLEEPER ->
        k = CAP;
        do
        :: old != SLEEPER && k > 0 -> k--
        :: true -> break
        od;
        h[m].next = at(h[m].sent + k)
    :: else
    fi;
    if
    :: h[m].called > 0 && in_take(m) -> lower(h[m].next, time)
    :: else
    fi;
    printf("%d gets the reply: role %d, next poll %d\n", m, h[m].role,
           h[m].next);
    k = 0; old = 0;
    h[m].led = false;
    if
    :: h[m].role != STANDBY -> h[m].due = 0; h[m].last = 0
    :: else
    fi;
    h[m].wants = h[m].role != SLEEPER; /* dq_sub_follow */
    if
    :: h[m].leaves -> /* dq_waiters_on_leave */
        if
        :: h[m].role >= LEADER -> h[m].next = time
        :: else
        fi;
        if
        :: h[m].role > NONE -> h[m].role = NONE
        :: else
        fi;
        h[m].leaves = false;
        h[m].wants = true
    :: h[m].got -> h[m].waits = false
    :: else
    fi;
    h[m].got = false; h[m].coming = 0; h[m].given = 0; h[m].sent = 0;
    h[m].claim = 0
}

/* dq_fetch_send */
inline send(m) {
    h[m].claim = NO_ROLE;
    if
    :: in_take(m) ->
        h[m].claim = CLAIMS_NONE;
        if
        :: h[m].role == NEW -> h[m].claim = CLAIMS_NEW
        :: h[m].role != NEW && h[m].called == 0 && h[m].role == LEADER ->
            h[m].claim = CLAIMS_LEADER
        :: h[m].role != NEW && h[m].called == 0 && h[m].role == SLEEPER ->
            h[m].claim = CLAIMS_SLEEPER
        :: h[m].role != NEW && h[m].called == 0 && h[m].role == STANDBY ->
            h[m].claim = (h[m].due <= time -> CLAIMS_CHECK : CLAIMS_STANDBY)
        :: else
        fi
    :: else
    fi;
    h[m].poll = 1;
    h[m].sent = time;
    h[m].next = NEVER;
    h[m].led = false;
    h[m].called = (h[m].called > 0 -> 1 : 0)
}

/* The socket of a handle is closed; its messages are lost. */
inline hang_up(m) {
    h[m].known = false;
    h[m].join_known = false;
    do
    :: nempty(socket[m]) -> socket[m]?_, _
    :: empty(socket[m]) -> break
    od
}

#define runs(m) (h[m].lives && !h[m].frozen)
#define steps(m) (runs(m) && (h[m].waits || h[m].leaves))
/* nothing to do before the next tick */
#define quiet(m) (!steps(m) || (h[m].poll == 0 && empty(socket[m]) && \
    h[m].next > time && h[m].known == h[m].wants && \
    h[m].join_known == h[m].join_wanted))

/* An idle handle reads its messages before anything else happens, since what it
 * does then depends on nobody else. This makes the model smaller. */
#define reads(m) (steps(m) && h[m].poll == 0 && h[m].next > time && \
    len(socket[m]) > 0)
#if HANDLES == 2
#define calm(m) (reads(m) || all_calm)
#define all_calm (!reads(0) && !reads(1))
#else
#define calm(m) (reads(m) || all_calm)
#define all_calm (!reads(0) && !reads(1) && !reads(2))
#endif
/* Handles begin their first takes in order, since they are alike. */
#define begins(m) (m == 0 || h[m - 1].begun)

active [HANDLES] proctype handle() {
    byte m = _pid, t;
    do
    :: atomic { calm(m) && steps(m) && h[m].poll == 2 -> on_reply(m) }
    /* dq_waiters_on_take: a take begins */
    :: d_step { calm(m) && runs(m) && begins(m) && !h[m].waits &&
                h[m].poll == 0 && takes < TAKES ->
        takes++;
        h[m].begun = true;
        printf("%d begins a take\n", m);
        h[m].waits = true;
        h[m].wants = h[m].role != SLEEPER;
        h[m].join_wanted = true;
        if
        :: h[m].role <= NONE && in_take(m) -> lower(h[m].next, time)
        :: else
        fi
    }
    /* dq_take_is_due. Messages that arrive before the server runs the take are
     * those that are read after this step. */
    :: atomic { calm(m) && steps(m) && h[m].poll == 0 && h[m].next <= time ->
        send(m);
        serve(m)
    }
    /* dq_take_leave: the take ends at its timeout */
    :: atomic { calm(m) && steps(m) && h[m].poll == 0 && h[m].waits &&
                leaves < LEAVES ->
        leaves++;
        printf("the take of %d ends\n", m);
        h[m].waits = false;
        if
        :: h[m].role >= LEADER ->
            h[m].leaves = true;
            send(m);
            serve(m)
        :: else
        fi
    }
    /* dq_sub_dispatch */
    :: d_step { calm(m) && steps(m) && socket[m]?[DUE, t] ->
        socket[m]?DUE(t);
        printf("%d reads DUE %d\n", m, t);
        on_due(m, t);
        t = 0
    }
    :: d_step { calm(m) && steps(m) && socket[m]?[LEAD, t] ->
        socket[m]?LEAD(t);
        printf("%d reads LEAD %d\n", m, t);
        on_lead(m, t);
        t = 0
    }
    :: d_step { calm(m) && steps(m) &&
                (socket[m]?[ENTER, t] || socket[m]?[CALL, t]) ->
        socket[m]?_(t);
        printf("%d is called\n", m);
        on_call(m);
        t = 0
    }
    /* dq_waiters_on_channel: all replies to a write come together */
    :: d_step { calm(m) && steps(m) && socket[m]?[CHANNELS, t] ->
        socket[m]?CHANNELS(t);
        printf("%d reads CHANNELS %d\n", m, t);
        if
        :: !h[m].joined && t > 1 -> on_joined(m)
        :: else
        fi;
        if
        :: h[m].hears != t % 2 ->
            h[m].hears = t % 2;
            on_due(m, time)
        :: else
        fi;
        t = 0
    }
    /* the server runs SUBSCRIBE and UNSUBSCRIBE */
    :: d_step { calm(m) && steps(m) && (h[m].known != h[m].wants ||
                h[m].join_known != h[m].join_wanted) ->
        h[m].known = h[m].wants;
        h[m].join_known = h[m].join_wanted;
        t = h[m].known + 2 * h[m].join_known;
        message(m, CHANNELS, t);
        t = 0
    }
    /* kill -9; SIGSTOP and SIGCONT; a lost subscriber (dq_sched_on_sub_lost) */
    :: d_step { calm(m) && h[m].lives && kills < KILLS ->
        kills++;
        printf("%d is killed\n", m);
        hang_up(m);
        h[m].lives = false;
        h[m].waits = false;
        h[m].poll = 0
    }
    :: d_step { calm(m) && runs(m) && freezes < FREEZES ->
        freezes++;
        printf("%d freezes\n", m);
        h[m].frozen = true
    }
    :: d_step { calm(m) && h[m].frozen -> h[m].frozen = false }
    :: d_step { calm(m) && steps(m) && h[m].join_known && losses < LOSSES ->
        losses++;
        printf("%d loses its subscriber\n", m);
        hang_up(m);
        h[m].hears = false;
        h[m].joined = false;
        h[m].role = NEW;
        h[m].called = 0;
        h[m].led = false;
        h[m].due = 0;
        h[m].last = 0;
        lower(h[m].next, time)
    }
    :: time == TICKS -> break
    od
}

#if HANDLES == 2
#define all_quiet (quiet(0) && quiet(1))
#define one_waits (h[0].waits && runs(0) || h[1].waits && runs(1))
#else
#define all_quiet (quiet(0) && quiet(1) && quiet(2))
#define one_waits (h[0].waits && runs(0) || h[1].waits && runs(1) || \
                   h[2].waits && runs(2))
#endif

active proctype world() {
    d_step {
        do
        :: i < ITEMS -> item[i] = NEVER; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < HANDLES -> h[i].lives = true; i++
        :: else -> break
        od;
        i = 0
    }
    do
    /* dq_lua_offer_usual: an offer, due now or later */
    :: atomic { all_calm && offered < ITEMS && time < TICKS ->
        j = time;
        do
        :: j < TICKS -> j++
        :: true -> break
        od;
        first_item();
        item[offered] = j;
        offered++;
        printf("an offer is due at %d\n", j);
        if
        :: j < n -> publish_due(j)
        :: else
        fi;
        j = 0; k = 0; n = 0
    }
    :: d_step { all_quiet && time < TICKS ->
        first_item();
        if
        :: n <= time && one_waits -> late++
        :: else
        fi;
        assert(late <= BOUND);
        time++;
        printf("time %d\n", time);
        k = 0; n = 0
    }
    :: time == TICKS -> break
    od
}
