/* An outbox and its queue: the offers of a ring, their numbers, and the key
 * delayq_sent. models.txt has the bounds of each run. Each step is atomic, as
 * in the program: a handle's step in its call, a script in the server. A step
 * stands for the functions that its comment names.
 *
 * All runs show, for each order of the steps:
 *
 *     once      the server stores no offer of a machine twice
 *     order     it stores no offer before one that was accepted earlier. One
 *               that was dropped may be stored late
 *     accepted  it stores nothing that was not accepted
 *     kept      an offer counts as stored only if it was stored. Beside a
 *               clone this holds for offers that were sent once
 *     end       after the last fault, each accepted offer is settled. Some may
 *               have been dropped, and a power cut may have removed some before
 *               they were synced
 *
 * Not in the model: due times, ids of elements, the day after which the server
 * forgets a number, cancels (numbered as offers are), and memory. */

#ifndef OPS
#define OPS 3 /* the most offers that a machine accepts */
#endif
#ifndef LOSSES
#define LOSSES 3 /* lost sockets */
#endif
#ifndef CRASHES
#define CRASHES 0 /* programs that die; the next one opens the image */
#endif
#ifndef FAILOVERS
#define FAILOVERS 0 /* the server is replaced by its replica */
#endif
#ifndef DROP
#define DROP 2 /* losses of an offer alone before its drop; 8 in the header */
#endif
#ifndef BREAK
#define BREAK 0 /* the number of a fault, which a run must notice */
#endif
/* POWER    a crash is a power cut, so that the image may be any earlier one
 * SYNC     with POWER: options.outbox_sync, so that it is not earlier than that
 *          of the last sync
 * CLONE    the machine may be copied while its program runs
 * COPY     after a crash, a second program may open a copy of the image */

#if defined(CLONE) || defined(COPY)
#define MACHINES 2
#else
#define MACHINES 1
#endif
#ifdef CLONE
#define by_clone copied
#else
#define by_clone false
#endif
#define LATE 2 /* requests on lost sockets that the server may still run */
#define LIVES (2 * CRASHES + 1)
#define IDS 3 /* values of handle_id */
#define ANY 255 /* DQ_MAX_DUE in dq_write_offer_head */

/* a request, as dq_write_offer_head and dq_write_offer_keys make it */
typedef Request {
    byte machine; /* 1 more than the machine's number; 0: no request */
    byte id;      /* handle_id and life: the name of the key delayq_sent */
    byte life;
    byte first;   /* the number of the first offer */
    byte n;
    byte most;    /* the highest number that this handle may have sent */
    byte offer    /* the first offer itself */
};

/* a handle with its outbox: delayq_lane and dq_ring */
typedef Handle {
    bool runs;
    byte id, life;
    byte accepted, settled, unsure, was_unsure, limit, losses, resumed;
    byte offers[OPS + 1]; /* by number: 1 more than the bit of an offer */
    byte lives[OPS + 1];  /* dq_op.life */
    byte made;            /* the offers that calls have accepted */
    byte state;           /* delayq_exchange.state, with the reply */
    byte most;            /* of the request in flight */
    byte image_id, image_settled; /* dq_mark; its `sent` is only a hint */
    byte synced, synced_settled; /* at the last sync; without SYNC 0 */
    byte dropped, lost, doubtful  /* bits */
};
Handle h[MACHINES];
Request now[MACHINES]; /* the request in flight, which has not run */
Request late[LATE];

#define NONE 0 /* no request */
#define SENT 1 /* it is in flight */
#define DONE 2 /* the reply: all was stored or skipped */
#define TWIN 3 /* the reply: another handle uses the numbers */
#define HIS 4  /* with BREAK 2: DONE, but the handle notices its clone */

/* the server, and its replica */
typedef Server {
    byte stored[MACHINES]; /* bits: the offers that each machine has stored */
    byte mark[IDS * LIVES] /* delayq_sent: the highest number, by id and life */
};
Server server, replica;
byte ever[MACHINES]; /* bits: offers that were stored at any time */
byte shared;         /* bits: offers that both machines have */
byte losses, crashes, failovers, lives;
bool copied;

#define BIT(offer) (1 << ((offer) - 1))
#if BREAK == 4
#define KEY(id, life) (id) /* the key has no life */
#else
#define KEY(id, life) ((id) * LIVES + (life))
#endif

/* --- the server --- */

byte k, skipped, who, what; /* local to a step */
byte result;

/* dq_lua_offer: begin_offers, the ZADD, count_up */
inline serve(r) {
    k = KEY(r.id, r.life);
    result = DONE;
    skipped = 0;
    if
    :: server.mark[k] >= r.first -> skipped = server.mark[k] - r.first + 1
    :: else
    fi;
    if
    :: skipped > r.n -> skipped = r.n
    :: else
    fi;
#if BREAK == 1
    skipped = 0; /* the script stores what it has stored before */
#endif
#if BREAK == 2
    if /* the script stores the others, and the handle notices the clone */
    :: skipped > 0 && r.first + skipped - 1 > r.most -> result = HIS
    :: else
    fi;
#else
    if
    :: server.mark[k] > r.most -> result = TWIN
    :: else
    fi;
#endif
    printf("  the server runs numbers %d to %d of %d, life %d: ", r.first,
           r.first + r.n - 1, r.machine - 1, r.life);
    printf("mark %d, result %d\n", server.mark[k], result);
    if
    :: result != TWIN && skipped < r.n ->
        server.mark[k] = r.first + r.n - 1;
        who = r.machine - 1;
        what = r.offer;
        do
        :: skipped < r.n ->
            store(who, what + skipped);
            skipped++
        :: else -> break
        od
    :: else
    fi
}

inline store(m, offer_) {
    assert((server.stored[m] & BIT(offer_)) == 0 || /* once */
           (h[m].doubtful & BIT(offer_)));
    assert((server.stored[m] >> (offer_)) == 0 || /* order */
           ((h[m].dropped | h[m].lost | h[m].doubtful) & BIT(offer_)));
    assert(offer_ >= 1 && offer_ <= h[m].made);        /* accepted */
#ifdef SYNC
    assert((h[m].lost & BIT(offer_)) == 0);
#endif
#ifdef COPY
    assert((shared & BIT(offer_)) == 0 ||
           (server.stored[1 - m] & BIT(offer_)) == 0);
#endif
    server.stored[m] = server.stored[m] | BIT(offer_);
    ever[m] = ever[m] | BIT(offer_)
}

/* --- a handle --- */

#define idle(m) (h[m].runs && h[m].state == NONE)
#define next(m) (h[m].settled + 1)
#if BREAK == 5
#define joins(m, n) may_go(m, n) /* a request mixes lives */
#else
#define joins(m, n) \
    (may_go(m, n) && h[m].lives[next(m)] == h[m].lives[next(m) + n])
#endif
/* dq_ring_date_all: the offers up to dq_ring.synced */
#if defined(SYNC) && BREAK != 8 /* else it sends before a sync */
#define may_go(m, n) (h[m].settled + n < h[m].synced)
#else
#define may_go(m, n) (h[m].settled + n < h[m].accepted)
#endif

byte i;

/* dq_keep_mark */
inline mark_image(m) {
    h[m].image_id = h[m].id;
    h[m].image_settled = h[m].settled
}

/* dq_lane_pop */
inline pop(m, count) {
    h[m].settled = h[m].settled + count;
    h[m].unsure = (h[m].unsure > count -> h[m].unsure - count : 0);
    mark_image(m)
}

/* An offer counts as stored: dq_op_settle, called by dq_read_offer. */
#if MACHINES == 2
#define was_stored(m) \
    (ever[m] | h[m].dropped | (shared & (ever[1 - m] | h[1 - m].dropped)))
#else
#define was_stored(m) (ever[m] | h[m].dropped)
#endif
inline settle(m, number) {
    k = h[m].offers[number];
    assert((was_stored(m) & BIT(k)) ||
           (by_clone && number <= h[m].most)) /* kept */
}

/* Of a request on a lost socket, the server may get nothing, or run it late. */
inline abandon(m) {
    i = 0;
    do
    :: i < LATE && late[i].machine > 0 -> i++
    :: else -> break
    od;
    if
    :: now[m].machine > 0 && i < LATE -> copy_request(late[i], now[m])
    :: true
    fi;
    now[m].machine = 0
}

inline copy_request(to, from) {
    to.machine = from.machine;
    to.id = from.id;
    to.life = from.life;
    to.first = from.first;
    to.n = from.n;
    to.most = from.most;
    to.offer = from.offer
}

inline clear_request(r) {
    r.machine = 0; r.id = 0; r.life = 0; r.first = 0; r.n = 0; r.most = 0;
    r.offer = 0
}

/* dq_decide_ring, for a request of n offers whose socket was lost */
inline lose(m, count) {
    h[m].state = NONE;
#if BREAK == 7
    settle(m, next(m)); /* a lost reply counts as a success */
    pop(m, count);
#else
    h[m].limit = (count > 1 -> count / 2 : 1);
    if
    :: count > 1 || count == 0 -> h[m].losses = 0
    :: count == 1 -> h[m].losses++ /* the server closed the socket at once */
    :: count == 1                  /* it did not */
    fi;
    if
    :: h[m].losses == DROP -> /* DQ_DROP in dq_lane_end */
        printf("%d drops number %d\n", m, next(m));
        h[m].dropped = h[m].dropped | BIT(h[m].offers[h[m].settled + 1]);
        pop(m, 1);
        h[m].losses = 0
    :: else
    fi
#endif
}

/* dq_keep_resume, dq_keep_walk: a new program opens the image */
inline resume(m) {
    lives++;
    h[m].life = lives;
    h[m].id = h[m].image_id;
    h[m].settled = h[m].image_settled;
#ifdef POWER
    /* the image ends at an earlier entry, or has an earlier mark */
    do
    :: h[m].settled > h[m].synced_settled -> h[m].settled--
    :: true -> break
    od;
    do
    :: h[m].accepted > h[m].settled && h[m].accepted > h[m].synced ->
        h[m].lost = h[m].lost | BIT(h[m].offers[h[m].accepted]);
        h[m].accepted--
    :: true -> break
    od;
#endif
    h[m].resumed = h[m].accepted;
    h[m].unsure = 0; /* a hint for changes: resumed offers send ANY */
    h[m].was_unsure = 0;
    h[m].limit = OPS;
    h[m].losses = 0;
    h[m].state = NONE;
    h[m].runs = true;
#ifdef SYNC
    h[m].synced = h[m].accepted; /* dq_keep_resume calls dq_keep_sync */
    h[m].synced_settled = h[m].settled;
#endif
    printf("%d resumes: life %d, numbers %d to %d\n", m, h[m].life, next(m),
           h[m].accepted);
    mark_image(m)
}

/* the state of machine 1 becomes that of machine 0 */
inline copy_machine() {
    h[1].id = h[0].id; h[1].life = h[0].life;
    h[1].accepted = h[0].accepted; h[1].settled = h[0].settled;
    h[1].unsure = h[0].unsure; h[1].was_unsure = h[0].was_unsure;
    h[1].limit = h[0].limit; h[1].losses = h[0].losses;
    h[1].resumed = h[0].resumed; h[1].made = h[0].made;
    h[1].state = h[0].state; h[1].most = h[0].most;
    h[1].image_id = h[0].image_id; h[1].image_settled = h[0].image_settled;
    h[1].dropped = h[0].dropped; h[1].lost = h[0].lost;
    h[1].doubtful = h[0].doubtful;
    k = 0;
    do
    :: k <= OPS -> h[1].offers[k] = h[0].offers[k];
        h[1].lives[k] = h[0].lives[k];
        k++
    :: else -> break
    od;
    shared = (1 << h[0].made) - 1;
    copied = true;
    printf("machine 0 is copied: %d offers\n", h[0].made);
    h[1].runs = true
}

byte n;
byte in_flight[MACHINES];

active [MACHINES] proctype handle() {
    byte m = _pid;
    do
    /* dq_ring_add: a call's offer is accepted */
    :: d_step { h[m].runs && h[m].accepted < OPS && h[m].made < OPS ->
        h[m].accepted++;
        h[m].made++;
        h[m].offers[h[m].accepted] = h[m].made;
        h[m].lives[h[m].accepted] = h[m].life;
        printf("%d accepts offer %d, number %d of life %d\n", m, h[m].made,
               h[m].accepted, h[m].life)
    }
#ifdef SYNC
    /* dq_keep_step, dq_keep_sync */
    :: d_step { h[m].runs && (h[m].synced < h[m].accepted ||
                h[m].synced_settled < h[m].image_settled) ->
        h[m].synced = h[m].accepted;
        h[m].synced_settled = h[m].image_settled
    }
#endif
    /* dq_lane_plan, dq_lane_write: the first offers of one life. How many fit
     * depends on their sizes, so here any number may. */
    :: atomic { idle(m) && may_go(m, 0) ->
        n = 1;
        do
        :: n < h[m].limit && joins(m, n) -> n++
        :: true -> break
        od;
        now[m].machine = m + 1;
        now[m].id = h[m].id;
        now[m].life = h[m].lives[next(m)];
        now[m].first = next(m);
        now[m].n = n;
        now[m].offer = h[m].offers[next(m)];
        /* dq_write_offer_head */
        now[m].most = h[m].settled + h[m].unsure;
#if BREAK == 3
        now[m].most = h[m].settled; /* the script takes a resend for a clone */
#endif
#if BREAK != 6 /* else it takes the resends after a resume for a clone */
        if
        :: h[m].settled < h[m].resumed -> now[m].most = ANY
        :: else
        fi;
#endif
        h[m].most = now[m].most;
        h[m].was_unsure = h[m].unsure;
        h[m].unsure = (h[m].unsure > n -> h[m].unsure : n);
        mark_image(m);
        in_flight[m] = n;
        h[m].state = SENT;
        printf("%d sends %d from number %d, id %d, life %d, most %d\n", m, n,
               next(m), h[m].id, now[m].life, now[m].most);
        n = 0
    }
    /* the server runs the request, or refuses it (memory, rights, a role) */
    :: d_step { h[m].runs && h[m].state == SENT && now[m].machine > 0 ->
        serve(now[m]);
        clear_request(now[m]);
        h[m].state = result;
        result = 0; k = 0; skipped = 0; who = 0; what = 0
    }
    :: d_step { h[m].runs && h[m].state == SENT && now[m].machine > 0 ->
        clear_request(now[m]);
        h[m].unsure = h[m].was_unsure; /* dq_lane_read */
        h[m].state = NONE;             /* DQ_KEEP */
        in_flight[m] = 0
    }
    /* dq_lane_read, dq_read_offer, DQ_DONE in dq_lane_end */
    :: d_step { h[m].runs && h[m].state == DONE ->
        h[m].unsure = h[m].was_unsure;
        i = 0;
        do
        :: i < in_flight[m] -> settle(m, next(m) + i); i++
        :: else -> break
        od;
        pop(m, in_flight[m]);
        printf("%d has settled up to number %d\n", m, h[m].settled);
        h[m].losses = 0;
        if
        :: 2 * in_flight[m] > h[m].limit -> h[m].limit = h[m].limit * 2
        :: else
        fi;
        h[m].limit = (h[m].limit > OPS -> OPS : h[m].limit);
        in_flight[m] = 0;
        h[m].state = NONE;
        i = 0; k = 0
    }
    /* dq_lane_read, dq_ring_meet_twin: a new handle_id; all is sent again */
    :: d_step { h[m].runs && (h[m].state == TWIN || h[m].state == HIS) ->
        printf("%d meets its clone\n", m);
        i = next(m);
        do
        :: i <= h[m].most && i <= h[m].accepted ->
            h[m].doubtful = h[m].doubtful | BIT(h[m].offers[i]);
            i++
        :: else -> break
        od;
        i = 0;
        h[m].id = 1 + m;
        h[m].unsure = 0;
        h[m].was_unsure = 0;
        mark_image(m);
        in_flight[m] = 0;
        h[m].state = NONE
    }
    /* a lost socket: dq_conn_lose */
    :: atomic { h[m].runs && h[m].state != NONE && losses < LOSSES ->
        losses++;
        printf("%d loses its socket\n", m);
        abandon(m);
        clear_request(now[m]);
        lose(m, in_flight[m]);
        in_flight[m] = 0;
        i = 0
    }
    :: atomic { h[m].runs && crashes < CRASHES ->
        crashes++;
        printf("%d crashes\n", m);
        abandon(m);
        clear_request(now[m]);
        in_flight[m] = 0;
        i = 0;
#ifdef COPY
        if
        :: m == 0 && !copied -> copy_machine(); resume(1)
        :: true
        fi;
#endif
        resume(m);
        k = 0
    }
#ifdef CLONE
    :: atomic { m == 0 && h[0].runs && !copied ->
        copy_machine();
        in_flight[1] = in_flight[0];
        if /* the clone has no sockets */
        :: h[1].state != NONE -> lose(1, in_flight[1])
        :: else
        fi;
        in_flight[1] = 0;
        k = 0
    }
#endif
    /* nothing else can happen: each accepted offer is settled */
    :: timeout ->
        assert(!h[m].runs || h[m].settled == h[m].accepted);
        break
    od
}

/* requests on lost sockets; a failover, which ends all sockets */
active proctype world() {
    byte at;
    do
    :: d_step { late[0].machine > 0 ->
        serve(late[0]);
        clear_request(late[0]);
        result = 0; k = 0; skipped = 0; who = 0; what = 0
    }
    :: d_step { late[1].machine > 0 ->
        serve(late[1]);
        clear_request(late[1]);
        result = 0; k = 0; skipped = 0; who = 0; what = 0
    }
    :: d_step { late[0].machine > 0 -> clear_request(late[0]) }
    :: d_step { late[1].machine > 0 -> clear_request(late[1]) }
#if FAILOVERS > 0
    /* the replica gets all writes so far */
    :: d_step { failovers < FAILOVERS ->
        replica.stored[0] = server.stored[0];
        at = 0;
        do
        :: at < IDS * LIVES -> replica.mark[at] = server.mark[at]; at++
        :: else -> break
        od;
        at = 0
    }
    :: d_step { failovers < FAILOVERS ->
        failovers++;
        printf("failover\n");
        server.stored[0] = replica.stored[0];
        at = 0;
        do
        :: at < IDS * LIVES -> server.mark[at] = replica.mark[at]; at++
        :: else -> break
        od;
        at = 0;
        clear_request(late[0]);
        clear_request(late[1]);
        if
        :: h[0].state != NONE ->
            clear_request(now[0]);
            h[0].state = NONE;
            h[0].limit = (in_flight[0] > 1 -> in_flight[0] / 2 : 1);
            in_flight[0] = 0
        :: else
        fi
    }
#endif
    :: timeout -> break
    od
}

init {
    d_step {
        h[0].runs = true;
        h[0].limit = OPS
    }
}
