"""What must hold of the histories of many processes.

    judge.py FOLDER     reads FOLDER/*.history*, prints what does not hold

worker.c explains the lines of a process. rig.py, or whoever else writes
histories, adds a file with the header `h T driver driver WORLD - 0 0 0 0` for
each world, which is a server or several that hold the same queues:

    Q QUEUE KEY=VALUE...    attempts=N, and counted=1 if all handles count,
                            ordered=1 if no handle fetches ahead, keys=0 if
                            keys end
    k T0 T1 US              the server's clock shows so much more than real time
                            since a time between T0 and T1
    w T0 T1 TEXT            the server may have lost changes of this time
    m T0 T1                 a slot was moving
    g T QUEUE               the queue was resumed
    F QUEUE STATE ID SCORE ATTEMPT REASON    what was there at the end; STATE is
                            pending, ready, retry, dead or mirror
    C QUEUE NAME VALUE      a counter at the end
    # TEXT                  a comment
    O QUEUE ID DELAY KEY    of an item's offers; it may be replaced, or KEY
                            cancelled
    D QUEUE ID              an item that the server may have lost
    ! T TEXT                something that must not be

A request that was begun takes effect at one time between its two lines, if it
takes effect. Without a second line, or if its status is unknown, it may take
effect at any time after it began, or never. All rules follow from this. They
never use more than the histories show, so each finding is a fault, of the
library or of the rig.
"""

import bisect
import os
import re
import sys
from collections import Counter, defaultdict

INVARIANTS = (
    ("lost", "no item is lost"),
    ("twice", "no item is stored, acked or delivered twice"),
    ("early", "no item is early by the server's clock, no lease ends early"),
    ("order", "the items of a handle come by due time, then by offer"),
    ("status", "what a call returns is true"),
    ("dead", "dead letters have their reason"),
    ("keys", "a key has one item"),
    ("counters", "the totals account for every item"),
    ("mirror", "the mirror has nothing but pending items"),
    ("tickets", "each lease has a ticket of its own"),
    ("paused", "nothing is taken from a paused queue"),
    ("process", "no process crashes, hangs, or sees what must not be"),
    ("kept", "what a kept outbox has accepted is settled in the end"),
    ("drained", "when all faults are over, everything due is delivered"),
)

OK, GONE, DUPLICATE = 0, 2, 3
PROTOCOL, UNKNOWN, ACCEPTED, SETTLED = -6, -10, 97, 98
NEVER = float("inf")


class Process:
    def __init__(self, name, words):
        self.name = name
        self.version, self.role, self.world, self.queue = words[2:6]
        self.lease_us = int(words[6]) * 1000
        self.wire, self.outbox = int(words[7]), int(words[8])
        self.opened = int(words[1])
        self.offers = []

    def __str__(self):
        return "%s (%s, %s)" % (self.name, self.role, self.version)


class Event:
    """A request about an item, or a take."""

    __slots__ = ("kind", "by", "began", "ended", "status", "id", "ticket",
                 "new", "number", "key", "replace", "attempt", "due",
                 "accepted")

    def __init__(self, kind, by, began):
        self.kind, self.by, self.began = kind, by, began
        self.ended, self.status = NEVER, None
        self.ticket = self.new = self.key = self.accepted = None
        self.number = self.attempt = self.due = self.replace = 0

    def may_be(self):
        """May it have taken effect?"""
        return self.status in (None, OK, UNKNOWN, PROTOCOL, SETTLED) or (
            self.kind == "o" and self.status == GONE)

    def until(self):
        """It takes effect before this time, if at all."""
        return NEVER if self.status in (None, UNKNOWN, PROTOCOL) else \
            self.ended

    def __str__(self):
        names = {"o": "offer", "T": "take", "a": "ack", "n": "nack",
                 "x": "extend", "b": "bury", "c": "cancel", "s": "reschedule"}
        text = "%s by %s at %d" % (names.get(self.kind, self.kind), self.by,
                                   self.began)
        if self.kind == "T":
            return text + " to %d (attempt %d, due %d, %s)" % (
                self.ended, self.attempt, self.due, self.ticket)
        return text + (" to %s: %s" % (self.ended, self.status)
                       if self.status is not None else ", no result")


class World:
    def __init__(self, name):
        self.name = name
        self.queues = {}  # name: its properties
        self.clock = [(0, 0, 0)]
        self.losses, self.moves = [], []
        self.items = defaultdict(list)  # (queue, id): events
        self.by_key = defaultdict(list)  # (queue, key): offers
        self.final = defaultdict(list)  # (queue, id): its final places
        self.counters = defaultdict(dict)
        self.redrives, self.frees = defaultdict(list), defaultdict(list)
        self.pauses = defaultdict(list)
        self.resumes = defaultdict(list)
        self.processes = []
        self.told = []  # the lines with "!"
        self.touched = set()  # (queue, id)
        self.corrections = []  # of lines "O"

    def offsets(self, begin, end):
        """The least and the most that the server's clock may have been ahead
        of real time, between the two."""
        end = min(end, 1 << 62)
        low = high = None
        i = bisect.bisect_right(self.clock, (begin, 0, 0)) - 1
        i = max(i, 0)
        while i > 0 and self.clock[i - 1][1] >= begin:
            i -= 1
        for t0, _, offset in self.clock[i:]:
            if t0 > end:
                break
            low = offset if low is None else min(low, offset)
            high = offset if high is None else max(high, offset)
        return low, high


    def latest(self, begin, end):
        """The latest time that the server's clock may have shown between the
        two."""
        return max(min(t1, end) + offset for t0, t1, offset in self.clock
                   if t0 <= end and t1 >= begin)


class Finding:
    def __init__(self, invariant, world, text, versions=()):
        self.invariant, self.world, self.text = invariant, world, text
        self.versions = tuple(sorted(set(versions)))

    def __str__(self):
        return "%s, %s: %s" % (self.invariant, self.world, self.text)


class Judge:
    def __init__(self):
        self.worlds = {}
        self.findings = []
        self.judged = Counter()  # (world, invariant): how often it was checked
        self.events = Counter()

    def fail(self, invariant, world, text, events=(), versions=()):
        versions = list(versions) + [e.by.version for e in events]
        text += "".join("\n        " + str(e) for e in
                        sorted(events, key=lambda e: e.began)[:12])
        self.findings.append(Finding(invariant, world.name, text, versions))

    def world(self, name):
        return self.worlds.setdefault(name, World(name))

    # --- reading ------------------------------------------------------------

    def read_folder(self, folder):
        for name in sorted(os.listdir(folder)):
            if ".history" in name:
                with open(os.path.join(folder, name), errors="replace") as f:
                    self.read(name.replace(".history", ""), f)

    def read(self, name, lines):
        by, world, open_ops = None, None, {}
        for line in lines:
            w = line.split()
            if not w or w[0] == "#":
                continue
            kind = w[0]
            if kind == "h":
                by = Process(name, w)
                world = self.world(by.world)
                world.processes.append(by)
                if by.outbox != 2:  # a kept one goes on later
                    open_ops = {}
                continue
            self.events[kind] += 1
            if kind == "r" and w[3] == str(ACCEPTED):
                if w[2] in open_ops:
                    open_ops[w[2]].accepted = int(w[1])
                    self.events["accepted by a kept outbox"] += 1
            elif kind == "r":
                e = open_ops.pop(w[2], None)
                if e is not None:
                    e.ended, e.status = int(w[1]), int(w[3])
                    if w[4] != "-":
                        e.new = w[4]
                    self.events["%s %s" % (e.kind, e.status)] += 1
            elif kind == "T":
                e = Event("T", by, int(w[1]))
                e.ended, e.status, e.id = int(w[2]), OK, int(w[3])
                e.attempt, e.due = int(w[4]), int(w[5])
                e.ticket = None if w[7] == "-" else w[7]
                if by.outbox and by.lease_us:  # the item was fetched before
                    e.began = min(e.began, e.ended - by.lease_us)
                world.items[by.queue, e.id].append(e)
            elif kind in "oacnxbs" and kind != "h":
                e = Event(kind, by, int(w[1]))
                e.id = int(w[3])
                if kind == "o":
                    e.number, e.replace = int(w[4]), int(w[6])
                    e.key = None if w[5] == "-" else w[5]
                    by.offers.append(e)
                elif kind == "s":
                    e.number = int(w[4])
                elif kind != "c":
                    e.ticket = None if w[4] == "-" else w[4]
                    if len(w) > 5:
                        e.number = int(w[5])
                open_ops[w[2]] = e
                world.items[by.queue, e.id].append(e)
            elif kind in "fzv":
                e = Event(kind, by, int(w[1]))
                open_ops[w[2]] = e
                if kind == "f":
                    world.frees[by.queue, w[3]].append(e)
                elif kind == "v":
                    world.redrives[by.queue].append(e)
                elif w[3] == "1":
                    world.pauses[by.queue].append(e)
                else:
                    world.resumes[by.queue].append(e.began)
            elif kind == "!":
                world.told.append((by, " ".join(w[2:])))
            elif kind == "O":
                world.corrections.append(w[1:])
                if w[4] != "-":
                    world.frees[w[1], w[4]].append(Event("f", by, 0))
            elif kind == "D":
                world.touched.add((w[1], int(w[2])))
            elif kind == "Q":
                world.queues[w[1]] = {k: int(v) for k, v in
                                      (x.split("=") for x in w[2:])}
            elif kind == "k":
                world.clock.append((int(w[1]), int(w[2]), int(w[3])))
            elif kind == "w":
                world.losses.append((int(w[1]), int(w[2])))
            elif kind == "m":
                world.moves.append((int(w[1]), int(w[2])))
            elif kind == "g":
                world.resumes[w[2]].append(int(w[1]))
            elif kind == "F":
                world.final[w[1], int(w[3])].append(w[2:])
            elif kind == "C":
                world.counters[w[1]][w[2]] = int(w[3])

    # --- judging ------------------------------------------------------------

    def judge(self):
        for world in self.worlds.values():
            for queue, number, delay, key in world.corrections:
                for e in world.items.get((queue, int(number)), ()):
                    if e.kind == "o":
                        e.number = int(delay)
                        if key != "-":
                            e.key, e.replace = key, 1
            for (queue, _), events in world.items.items():
                for e in events:
                    if e.kind == "o" and e.key:
                        world.by_key[queue, e.key].append(e)
            world.clock.sort()
            world.set_back = [(b[0], b[1]) for a, b in zip(
                world.clock, world.clock[1:]) if b[2] < a[2]]
            # An offset is valid until the next one is set.
            world.clock = [(t0, world.clock[i + 1][1]
                            if i + 1 < len(world.clock) else 1 << 62, offset)
                           for i, (t0, _, offset) in enumerate(world.clock)]
            for who, text in world.told:
                self.fail("drained" if "drained" in text else "process", world,
                          "%s: %s" % (who, text), versions=[who.version])
            for key in set(world.items) | set(world.final):
                self.item(world, key)
            for p in world.processes:
                self.order(world, p)
            self.keys(world)
            self.tickets(world)
            self.paused(world)
            for queue in world.queues:
                self.counters(world, queue)
                self.judged[world.name, "drained"] += 1
            self.judged[world.name, "process"] += len(world.processes)
        return self.findings

    @staticmethod
    def overlaps(windows, begin, end):
        return any(t0 <= end and begin <= t1 for t0, t1 in windows)

    def disturbed(self, world, events):
        """May the server have lost a change of this item? A request whose end
        nobody saw has ended after a minute."""
        return world.losses and any(
            self.overlaps(world.losses, e.began,
                          min(e.until(), max(e.began, 0) + 60000000))
            for e in events)

    def item(self, world, key):
        queue, number = key
        events = world.items.get(key, [])
        final = [f for f in world.final.get(key, []) if f[0] != "mirror"]
        mirror = [f for f in world.final.get(key, []) if f[0] == "mirror"]
        properties = world.queues.get(queue, {})
        offers = [e for e in events if e.kind == "o"]
        takes = sorted((e for e in events if e.kind == "T"),
                       key=lambda e: e.ended)
        name = "item %d of %s" % (number, queue)
        if not offers:
            self.fail("twice", world, name + ": nobody has offered it", events)
            return
        if mirror:
            self.judged[world.name, "mirror"] += 1
            if not any(f[0] == "pending" for f in final):
                self.fail("mirror", world, name + " is in the mirror, and not "
                          "pending", events)
        if key in world.touched or self.disturbed(world, events):
            self.judged[world.name, "disturbed"] += 1
            return
        # 0.1 may store an offer twice if its reply is lost and the server's
        # clock is set back meanwhile (tests/README.md)
        if any(o.by.version == "0.1" and self.overlaps(
                world.set_back, offers[0].began, o.until()) for o in offers):
            self.judged[world.name, "known"] += 1
            return
        lease = any(e.ticket for e in takes) or offers[0].by.lease_us > 0
        acks = [e for e in events if e.kind == "a"]
        acked = [e for e in acks if e.status == OK]
        cancels = [e for e in events if e.kind == "c"]

        # An outbox that outlives its process has accepted the offer.
        for e in events:
            if e.accepted is None:
                continue
            self.judged[world.name, "kept"] += 1
            if e.status is None:
                self.fail("kept", world, "%s: \"%s\" is accepted by a kept "
                          "outbox, and never settled" % (name, e), events)

        # The item was stored; where is it now?
        stored = any(e.status == OK for e in offers) or takes or final
        ended = any(e.may_be() for e in acks + cancels)
        if not lease:
            ended = True  # the reply to a take may be lost
        for e in offers:
            if e.key and self.may_be_replaced(world, queue, e):
                ended = True
        self.judged[world.name, "lost"] += 1
        if stored and not final and not ended:
            self.fail("lost", world, name + " is nowhere", events)
        self.judged[world.name, "twice"] += 1
        if len(final) > 1:
            self.fail("twice", world, "%s is stored %d times: %s" % (
                name, len(final), final), events)
        if len(acked) > 1:
            self.fail("twice", world, name + " is acked twice", events)
        for ending, word in [(e, "acked") for e in acked] + [
                (e, "cancelled") for e in cancels if e.status == OK]:
            if final:
                self.fail("twice", world, "%s is %s, and still %s" % (
                    name, word, final[0][0]), events)
            for take in takes:
                if take.began > ending.ended:
                    self.fail("twice", world, "%s is %s, and then delivered"
                              % (name, word), events)
                    break
        if not lease and takes and (len(takes) > 1 or final):
            self.fail("twice", world, name + " is delivered, without a lease, "
                      "and there again", events)

        # The results of the calls.
        self.judged[world.name, "status"] += len(events)
        if not any(e.may_be() for e in offers) and (takes or final):
            self.fail("status", world, name + " is there, and its offer has "
                      "failed", events)
        self.gone(world, name, events, offers, takes)

        # The dead letters.
        for f in final:
            if f[0] != "dead":
                continue
            self.judged[world.name, "dead"] += 1
            attempt, reason = int(f[3]), f[4]
            if not (reason == "buried" and
                    any(e.kind == "b" and e.may_be() for e in events) or
                    reason == "attempts" and properties.get("attempts") and
                    attempt >= properties["attempts"]):
                self.fail("dead", world, "%s is dead, with the reason \"%s\" "
                          "and attempt %d" % (name, reason, attempt), events)
        for take in takes:
            if 0 < properties.get("attempts", 0) < take.attempt:
                self.fail("dead", world, "%s is handed out for the %dth time"
                          % (name, take.attempt), events)
        self.early(world, name, queue, events, takes)

    @staticmethod
    def may_be_replaced(world, queue, offer):
        """By another offer under its key, or by a cancel of the key."""
        return any(e.may_be() for e in world.frees.get((queue, offer.key), ())
                   ) or any(e.id != offer.id and e.replace and e.may_be()
                            for e in world.by_key.get((queue, offer.key), ()))

    def gone(self, world, name, events, offers, takes):
        """GONE is a lie while nobody else can have changed the item."""
        for e in events:
            if e.status != GONE or e.kind == "o":
                continue
            if e.kind in "cs":
                # It can have left the set only because the due time of its
                # first offer came.
                begun = [o for o in offers if o.status == OK and o.new]
                if len(offers) != 1 or not begun or takes or any(
                        x is not e and x.kind in "cs" for x in events):
                    continue
                if offers[0].key and self.may_be_replaced(
                        world, e.by.queue, offers[0]):
                    continue
                due, since = int(begun[0].new.split("-")[0]), begun[0].began
            else:
                take = [t for t in takes if t.ticket == e.ticket]
                if not take or any(x is not e and x.ticket == e.ticket and
                                   x.kind != "T" for x in events):
                    continue
                due, since = int(e.ticket.split("-")[0]), take[0].began
            now = e.ended + world.offsets(since, e.ended)[1]
            if now < due * 1000:
                self.fail("status", world, "%s: %s returns GONE %d ms before "
                          "its time" % (name, e.kind, due - now // 1000),
                          events)

    def floor(self, world, e):
        """The server's time in us before which the item may not be delivered
        again, if this was the last event that has changed it."""
        p = e.by
        if e.kind == "T":
            if e.ticket:
                return int(e.ticket.split("-")[0]) * 1000
            return 0
        if e.kind == "b":
            return 0  # redriven
        if e.kind == "x":
            if e.new:
                return int(e.new.split("-")[0]) * 1000
        if e.kind == "n" and e.number < 0:
            return 0
        begin = p.opened if p.outbox else e.began
        low = world.offsets(begin, e.until())[0]
        # An outbox knows the server's clock only to a part of a millisecond.
        low -= 1000 if p.outbox else 0
        return e.began + low + e.number * 1000

    def early(self, world, name, queue, events, takes):
        changes = [e for e in events if e.kind in "oTnxs" and e.may_be()]
        buries = [e for e in events if e.kind == "b" and e.may_be()]
        redrives = world.redrives.get(queue, ())
        for take in takes:
            self.judged[world.name, "early"] += 1
            last = None
            for e in changes:
                if e is not take and e.status == OK and \
                        e.ended <= take.began and (
                            last is None or e.ended > last.ended):
                    last = e
            begin = last.began if last else 0
            floors = [(self.floor(world, e), e) for e in changes
                      if e is not take and e.began < take.ended and
                      (e is last or e.until() >= begin)]
            # Of two takes that overlap, either may have been first.
            floors = [(f, e) for f, e in floors
                      if e.kind != "T" or e.ended <= take.ended]
            for b in buries:
                if any(r.began < take.ended and r.until() >= b.began
                       for r in redrives):
                    floors.append((0, b))
            if not floors:
                continue
            floor, why = min(floors, key=lambda f: f[0])
            # The item came from a list, so it had been moved there before. That
            # was in time if the server's clock was later then.
            now = world.latest(take.began if take.due else begin, take.ended)
            if take.due and take.ticket and take.by.lease_us:
                now = min(now, (int(take.ticket.split("-")[0]) * 1000 -
                                take.by.lease_us))
            if now < floor:
                self.fail("early", world, "%s is taken %.1f ms before its time,"
                          " by \"%s\"" % (name, (floor - now) / 1000, take),
                          [why] + [e for e in events if e is not why])
            if take.ticket and take.by.lease_us and not take.by.outbox:
                due = int(take.ticket.split("-")[0]) * 1000
                least = (take.began + take.by.lease_us +
                         world.offsets(take.began, take.ended)[0])
                if due < least - 1000:
                    self.fail("early", world, "%s: its lease ends %.1f ms "
                              "early" % (name, (least - due) / 1000), [take])

    def order(self, world, by):
        if not world.queues.get(by.queue, {}).get("ordered"):
            return
        plain = []
        for e in by.offers:
            events = world.items[by.queue, e.id]
            if e.status != OK or not e.new or e.key:
                continue
            takes = sorted((x for x in events if x.kind == "T"),
                           key=lambda x: x.ended)
            if not takes or any(x is not e and x.kind in "ocs"
                                for x in events):
                continue
            # The item may have been handed out before, by a take whose reply
            # was lost.
            if by.lease_us and (takes[0].attempt != 1 or
                                by.wire and not takes[0].due):
                continue
            if self.disturbed(world, events) or self.overlaps(
                    world.moves, e.began, takes[0].ended):
                continue
            plain.append((e, int(e.new.split("-")[0]), takes[0]))
        for i, (a, due, first) in enumerate(plain):
            for b, other_due, second in plain[i + 1:i + 200]:
                if a.ended > b.began or due > other_due:
                    continue
                self.judged[world.name, "order"] += 1
                if second.ended < first.began:
                    self.fail("order", world, "item %d of %s, due %d ms later "
                              "and offered later, comes before item %d" % (
                                  b.id, by.queue, other_due - due, a.id),
                              [a, b, first, second])

    def keys(self, world):
        for (queue, key), offers in world.by_key.items():
            if not world.queues.get(queue, {}).get("keys", 1):
                continue
            for e in offers:
                if e.status != DUPLICATE:
                    continue
                self.judged[world.name, "keys"] += 1
                if not any(o is not e and o.may_be() and o.began < e.ended
                           for o in offers) and not world.losses:
                    self.fail("keys", world, "key %s of %s is taken by nobody"
                              % (key, queue), offers)
            stored = sorted((e for e in offers if e.status == OK and
                             not e.replace), key=lambda e: e.ended)
            for a, b in zip(stored, stored[1:]):
                self.judged[world.name, "keys"] += 1
                if a.id == b.id or self.disturbed(
                        world, world.items[queue, a.id]) or self.disturbed(
                        world, world.items[queue, b.id]):
                    continue
                if not any(f.may_be() or f.status == GONE
                           for f in world.frees.get((queue, key), ())
                           if f.began <= b.ended and f.until() >= a.began):
                    self.fail("keys", world, "items %d and %d of %s are stored "
                              "under the key %s" % (a.id, b.id, queue, key),
                              [a, b])

    def tickets(self, world):
        seen = {}
        for (queue, _), events in world.items.items():
            for e in events:
                if e.kind != "T" or not e.ticket:
                    continue
                self.judged[world.name, "tickets"] += 1
                other = seen.setdefault((queue, e.ticket), e)
                if other is not e and not self.disturbed(world, [e, other]):
                    self.fail("tickets", world, "two leases have the ticket "
                              + e.ticket, [e, other])

    def paused(self, world):
        for queue, pauses in world.pauses.items():
            resumes = sorted(world.resumes[queue])
            spans = []
            for e in pauses:
                if e.status != OK:
                    continue
                i = bisect.bisect_left(resumes, e.began)
                end = resumes[i] if i < len(resumes) else NEVER
                if e.ended < end and not self.overlaps(
                        world.losses, e.began, end):
                    spans.append((e.ended, end))
            spans.sort()
            starts = [s[0] for s in spans]
            self.judged[world.name, "paused"] += len(spans)
            for (q, _), events in world.items.items():
                for t in events if q == queue and spans else ():
                    if t.kind != "T" or t.by.version != "today" or t.by.outbox:
                        continue
                    i = bisect.bisect_left(starts, t.began) - 1
                    if i >= 0 and t.ended < spans[i][1]:
                        self.fail("paused", world, "item %d of %s is taken, "
                                  "which has been paused since %d" % (
                                      t.id, queue, starts[i]), [t])

    def counters(self, world, queue):
        if not world.queues[queue].get("counted"):
            return
        c = world.counters[queue]
        there = sum(f[0] != "mirror" for (q, _), all_of in world.final.items()
                    if q == queue for f in all_of)
        out = c.get("acked", 0) + c.get("canceled", 0)
        self.judged[world.name, "counters"] += 1
        if c.get("offered", 0) != there + out:
            self.fail("counters", world, "%s: %s, and %d items are there" % (
                queue, " ".join("%s %d" % x for x in sorted(c.items())), there))
        if world.losses:
            return
        for word, kind in (("offered", "o"), ("acked", "a")):
            sure = possible = 0
            for (q, _), events in world.items.items():
                if q != queue:
                    continue
                some = [e for e in events if e.kind == kind]
                sure += any(e.status == OK for e in some)
                possible += any(e.may_be() for e in some)
            if not sure <= c.get(word, 0) <= possible:
                self.fail("counters", world, "%s counts %d as %s: at least %d, "
                          "at most %d" % (queue, c.get(word, 0), word, sure,
                                          possible))


def judge_folder(folder):
    judge = Judge()
    judge.read_folder(folder)
    judge.judge()
    return judge


def judge_lines(files):
    """The same with histories in memory: {name: text}."""
    judge = Judge()
    for name, text in files.items():
        judge.read(name, text.splitlines())
    judge.judge()
    return judge


ELEMENT_ID = re.compile(rb"<([0-9a-f]+) (\d+)>")


if __name__ == "__main__":
    j = judge_folder(sys.argv[1])
    for finding in j.findings:
        print("FAIL", finding)
    print("%d findings" % len(j.findings))
    sys.exit(1 if j.findings else 0)
