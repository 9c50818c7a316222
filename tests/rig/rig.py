"""Processes of the library in three versions and of the tool, on real servers,
under every fault at once; then the judgement of their histories.

    rig.py [--seconds N] [--seed N] [--plan] [--keep]

The seed determines the plan: which fault happens when, to whom. The same seed
has the same plan; what the processes do in the meantime depends on the machine.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import judge
import judge_test
from judge import ELEMENT_ID
from world import (BUILD, PASSWORD, Children, Cluster, Gone, Redis, Refused,
                   Sentinel, World, now_us, remove)

LEASE_MS = 3000
ATTEMPTS = 3
ANY = ("today", "0.2", "0.1")
NEW = ("today", "0.2")

QUEUES = {
    "alone": {
        "jobs": dict(lease=LEASE_MS, attempts=ATTEMPTS, keys=1),
        "once": dict(lease=0),
        "mirror": dict(lease=LEASE_MS, wire=1),
        "counted": dict(lease=LEASE_MS, counters=1),
    },
    "sentinel": {
        "jobs": dict(lease=LEASE_MS, attempts=ATTEMPTS, keys=1),
        "counted": dict(lease=LEASE_MS, counters=1),
    },
    "cluster": {
        "jobs": dict(lease=LEASE_MS, attempts=ATTEMPTS, keys=1),
        "counted": dict(lease=LEASE_MS),
    },
}

# Each slot: role, queue, versions that it may have.
SLOTS = {
    "alone": [
        ("produce", "jobs", ANY), ("produce", "jobs", ANY),
        ("work", "jobs", ANY), ("work", "jobs", ANY), ("loop", "jobs", ANY),
        ("move", "jobs", ANY), ("churn", "jobs", ANY), ("fork", "jobs", ANY),
        ("watch", "jobs", ANY), ("redrive", "jobs", ANY),
        ("tool", "counted", ("today",)),
        ("produce", "once", ANY), ("work", "once", ANY),
        ("produce", "mirror", ANY), ("work", "mirror", ANY),
        ("move", "mirror", ANY),
        ("frames", "counted", NEW), ("frames", "counted", NEW),
        ("work", "counted", NEW), ("pause", "counted", ("today",)),
        ("kept", "counted", ("today",)),
    ],
    "sentinel": [
        ("produce", "jobs", ANY), ("work", "jobs", ANY), ("loop", "jobs", ANY),
        ("churn", "jobs", ANY),
        ("frames", "counted", NEW), ("produce", "counted", NEW),
        ("work", "counted", NEW), ("pause", "counted", ("today",)),
        ("kept", "counted", ("today",)),
    ],
    "cluster": [
        ("produce", "jobs", ANY), ("work", "jobs", ANY), ("loop", "jobs", ANY),
        ("fork", "jobs", ANY), ("redrive", "jobs", ANY),
        ("frames", "counted", NEW), ("work", "counted", NEW),
        ("pause", "counted", ("today",)), ("kept", "counted", ("today",)),
    ],
}
TLS_SLOTS = [("produce", "jobs", ("today",)), ("work", "jobs", ("today",)),
             ("frames", "counted", ("today",))]

LANES = ("network", "processes", "servers", "settings", "tool")
WORDS = ("EVALSHA", "SUBSCRIBE", "TRACKING", "CACHING", "SCRIPT", "AUTH",
         "SETNAME", "PING", "UNSUBSCRIBE")


# --- the plan -----------------------------------------------------------------

def network_fault(r, world):
    kind = r.choice(("delay", "slow", "cut", "cut", "bite", "bite", "half",
                     "forget", "refuse", "word", "word"))
    lasts = r.uniform(0.3, 3)
    if kind == "delay":
        return kind, lasts, (r.choice((2, 10, 50, 300)), r.choice((0, 5, 100)))
    if kind == "slow":
        return kind, lasts, (r.choice((2000, 20000, 200000)),)
    if kind == "cut":
        return kind, 0, (r.choice((10, 50, 100)),)
    if kind == "bite":
        return kind, lasts, (r.choice((3, 40, 300, 3000, 40000)),
                             r.choice((20, 100)))
    if kind == "half":
        return kind, lasts, (r.choice((10, 50)), r.randrange(3))
    if kind == "forget":
        return kind, lasts, (r.choice((10, 50)),)
    if kind == "refuse":
        return kind, r.uniform(0.1, 1.5), ()
    return kind, lasts, (r.choice(WORDS), r.randrange(1, 40))


def process_fault(r, world):
    kind = r.choice(("kill", "kill", "freeze", "freeze", "upgrade", "upgrade",
                     "replace", "stop"))
    slot = r.randrange(1000)
    many = r.choice((1, 1, 1, 3))
    if kind == "freeze":
        return kind, r.choice((0.2, 1, 4, 7)), (slot, many)
    return kind, 0, (slot, many, r.randrange(1000))


def server_fault(r, world):
    kinds = {"alone": ("kill", "kill", "freeze", "freeze"),
             "sentinel": ("failover", "kill master", "freeze", "freeze",
                          "kill replica", "kill replica", "kill sentinel"),
             "cluster": ("move", "move", "move", "kill", "freeze")}[world]
    kind = r.choice(kinds)
    if kind == "freeze":
        return kind, r.choice((0.1, 0.5, 2.5)), (r.randrange(3),)
    if kind == "kill":
        return kind, r.choice((0, 0.3, 2)), (r.randrange(3),)
    if kind == "kill master":  # before or after a failover
        return kind, r.choice((0.5, 9)), ()
    if kind == "move":
        return kind, 0, (r.choice(sorted(QUEUES[world])),
                         r.choice((0, 0.02, 0.2)))
    return kind, r.uniform(0.2, 2), (r.randrange(3),)


def setting_fault(r, world):
    kind = r.choice(("rights", "rights", "memory", "clock", "clock", "scripts",
                     "clients", "subscribers", "pause writes", "replicas",
                     "busy"))
    lasts = r.uniform(0.3, 2.5)
    if kind == "rights":
        return kind, lasts, (r.choice((
            "off", "-@all", "-evalsha", "-zadd", "-rpush", "-publish",
            "-subscribe", "-client|tracking", "-zrem", "-lrange", "resetkeys",
            "resetchannels", "-time")),)
    if kind == "clock":
        return kind, 0, (r.choice((-4000, -900, -30, 30, 900, 2500, 4000)),)
    if kind in ("scripts", "clients", "subscribers"):
        return kind, 0, ()
    return kind, min(lasts, 1.5), ()


def make_plan(seed, seconds):
    """All faults: (seconds from the beginning, world, lane, kind, how long,
    more)."""
    faults = {"network": (network_fault, 0.5, 2.5),
              "processes": (process_fault, 0.4, 2.0),
              "servers": (server_fault, 2.0, 6.0),
              "settings": (setting_fault, 1.0, 4.0)}
    # What happens during a failover is judged less strictly: see `disturbed`.
    rarely = (server_fault, 5.0, 15.0)
    plan = []
    for world in QUEUES:
        for lane, (draw, low, high) in faults.items():
            if (world, lane) == ("sentinel", "servers"):
                draw, low, high = rarely
            r = random.Random("%s/%s/%s" % (seed, world, lane))
            at = 2 + r.uniform(0, 3)
            while at < seconds - 2:
                kind, lasts, more = draw(r, world)
                plan.append((round(at, 3), world, lane, kind, round(lasts, 3),
                             more))
                at += lasts + r.uniform(low, high)
    return sorted(plan)


# --- processes ----------------------------------------------------------------

class Slot:
    """A place for a process, which is killed, frozen, upgraded."""

    def __init__(self, rig, world, number, role, queue, versions, tls=False):
        self.rig, self.world, self.number = rig, world, number
        self.role, self.queue, self.versions = role, queue, versions
        self.tls = tls
        self.version = versions[number % len(versions)]
        self.lives, self.process = 0, None
        self.frozen = self.expected = False
        self.lock = threading.RLock()

    def __str__(self):
        return "%s-%02d-%s" % (self.world.name, self.number, self.role)

    def start(self, more=()):
        with self.lock:
            self.lives += 1
            name = "%s.%d.%s" % (self, self.lives, self.version)
            path = os.path.join(self.rig.histories, name + ".history")
            if self.role == "kept":  # always the same history and outbox
                path = os.path.join(self.rig.histories, "%s.history" % self)
            self.path, self.before = path, 0
            self.before = self.written()
            self.errors = os.path.join(self.rig.histories, name + ".err")
            self.expected = self.frozen = False
            if self.role == "tool":
                self.start_tool(path)
                return
            q = QUEUES[self.world.name][self.queue]
            self.rig.instances += 1
            argv = [BUILD + "/worker-" + self.version,
                    "role=" + self.role, "world=" + self.world.name,
                    "queue=" + self.queue, "log=" + path,
                    "url=" + self.world.url(self.tls),
                    "instance=%d" % self.rig.instances,
                    "seed=%d" % (self.rig.seed * 1000003 +
                                 self.rig.instances),
                    "lease=%d" % q["lease"], "wire=%d" % q.get("wire", 0),
                    "attempts=%d" % q.get("attempts", 0),
                    "keys=%d" % q.get("keys", 0),
                    "counters=%d" % q.get("counters", 0), "gap=60000"]
            if self.role == "kept":
                argv[1] = "role=frames"
                argv += ["outbox=65536", "keep=%s/%s" % (self.rig.folder,
                                                         self)]
                if self.lives > 1:
                    self.rig.count("kept outboxes resumed")
            if self.role == "frames":
                argv.append("outbox=%d" % (8192, 65536, 131072)[
                    self.lives % 3])
            if self.tls:
                argv.append("tls_ca=" + self.world.dir + "/ca.crt")
            env = dict(os.environ)
            if self.lives % 3 == 2 and self.version != "0.1":
                env["SETTIME"] = self.rig.clock_path  # its clock jumps
            with open(self.errors, "w") as err:
                self.process = self.rig.children.start(
                    argv + list(more), env=env, stderr=err, stdout=err)
            self.rig.count("processes of " + self.version)

    def start_tool(self, path):
        """`delayq take --follow --exec`, whose results this reads."""
        with open(path, "w") as f:
            f.write("h %d today tool %s %s %d 0 1 0\n" % (
                now_us(), self.world.name, self.queue, LEASE_MS))
        env = dict(os.environ, DELAYQ_URL=self.world.url())
        with open(self.errors, "w") as err:
            self.process = self.rig.children.start(
                ["build/delayq", "take", self.queue, "--follow", "--json",
                 "--lease", "3s", "--counters", "-j", "2", "--bury-on", "9",
                 "--exec", "sh tests/rig/job.sh " + path],
                env=env, stdout=subprocess.PIPE, stderr=err, text=True)
        self.rig.count("processes of the tool")
        threading.Thread(target=self.read_tool, args=(self.process, path),
                         daemon=True).start()

    def read_tool(self, process, path):
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            good = (said.get("result"), said.get("exit")) in (
                ("acked", 0), ("nacked", 1), ("buried", 9))
            if good:  # if a reply was lost, the result is most likely this
                with open(path, "a") as f:
                    f.write("r %d %s 98 -\n" % (now_us(), said["ticket"]))

    def kill(self):
        with self.lock:
            self.expected = True
            if self.process and self.process.poll() is None:
                self.process.kill()
            if self.process:
                self.process.wait()
                self.rig.children.forget(self.process)

    def terminate(self):
        with self.lock:
            self.expected = True
            self.freeze(False)
            if self.process and self.process.poll() is None:
                self.process.terminate()

    def freeze(self, on):
        with self.lock:
            if self.process and self.process.poll() is None and \
                    on != self.frozen:
                self.process.send_signal(
                    signal.SIGSTOP if on else signal.SIGCONT)
                self.frozen = on

    def ended(self, seconds):
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def written(self):
        """The bytes of its history."""
        return os.path.getsize(self.path) if os.path.exists(self.path) else 0

    def complain(self, text):
        with open(self.errors, errors="replace") as f:
            said = " / ".join(f.read().split("\n")[:8])
        self.world.write("!", now_us(), "%s (%s) %s: %s" % (
            self, self.version, text, said))

    def check(self):
        """Start it again if it has ended; it should not have."""
        with self.lock:
            if self.process and self.process.poll() is not None and \
                    not self.expected:
                # The tool ends at a refusal.
                if self.role != "tool" or self.process.returncode != 4:
                    self.complain("has ended with %d" %
                                  self.process.returncode)
                self.rig.children.forget(self.process)
                self.start()

    def check_end(self):
        code = self.process.returncode
        if code == -signal.SIGTERM and self.written() == self.before:
            return  # it had not begun: a worker's first act is its history
        if code != 0 and not (self.role == "tool" and code in (0, 3, 4, 5)):
            self.complain("ends with %d after SIGTERM" % code)


# --- the rig ------------------------------------------------------------------

class Rig:
    def __init__(self, options):
        self.seed, self.seconds = options.seed, options.seconds
        self.plan = make_plan(self.seed, self.seconds)
        self.program = os.environ.get("DELAYQ_TEST_SERVER") or next(
            filter(None, map(shutil.which, ("redis-server", "valkey-server"))),
            None)
        if not self.program:
            raise SystemExit("redis-server is missing")
        self.tls = os.path.exists(BUILD + "/tls")
        self.folder = os.path.abspath("%s/run-%d" % (BUILD, os.getpid()))
        self.histories = os.path.join(self.folder, "histories")
        os.makedirs(self.histories)
        self.children = Children()
        self.counts, self.count_lock = Counter(), threading.Lock()
        self.instances = 0
        self.interrupted = False
        self.faults_over, self.over = threading.Event(), threading.Event()
        self.clock_path = os.path.join(self.folder, "clock")
        with open(self.clock_path, "wb") as f:
            f.write(bytes(8))
        self.worlds, self.slots = {}, {}

    def count(self, what, n=1):
        with self.count_lock:
            self.counts[what] += n

    # --- faults -------------------------------------------------------------

    def do_network(self, world, kind, lasts, more):
        self.count("network: " + {
            "delay": "delays", "slow": "slow lines", "cut": "cuts",
            "bite": "cuts at a byte", "half": "half-open connections",
            "forget": "forgotten connections", "refuse": "refusals",
            "word": "closed at a command"}[kind])
        if kind == "refuse":
            more = (1,)
        world.tell_proxy("%s %s" % (kind, " ".join(map(str, more))))
        self.faults_over.wait(lasts)
        if kind in ("delay", "slow", "refuse"):
            world.tell_proxy(kind + " 0 0")
        elif kind == "word":
            world.tell_proxy("word - 0")

    def do_processes(self, world, kind, lasts, more):
        slots = self.slots[world.name]
        some = [slots[(more[0] + 7 * i) % len(slots)] for i in range(more[1])]
        if kind == "freeze":
            for s in some:
                s.freeze(True)
            self.count("processes frozen", len(some))
            self.faults_over.wait(lasts)
            for s in some:
                s.freeze(False)
            return
        for i, s in enumerate(some):
            with s.lock:
                if kind in ("kill", "replace"):
                    s.kill()
                    self.count("processes killed")
                else:
                    s.terminate()
                    if not s.ended(3):
                        # The process waits for a server that is down, or the
                        # like.
                        s.kill()
                        self.count("processes killed")
                    else:
                        s.check_end()
                        self.children.forget(s.process)
                        self.count("processes stopped")
                if kind in ("upgrade", "replace"):
                    old = s.version
                    s.version = s.versions[(more[2] + i) % len(s.versions)]
                    if s.version != old:
                        self.count("upgrades" if ANY.index(s.version) <
                                   ANY.index(old) else "downgrades")
                s.start()

    def do_servers(self, world, kind, lasts, more):
        if kind == "freeze":
            s = world.servers[more[0] % len(world.servers)]
            s.freeze(True)
            self.count("servers frozen")
            self.faults_over.wait(lasts)
            s.freeze(False)
        elif kind == "kill":
            s = world.servers[more[0] % len(world.servers)]
            s.kill()
            self.count("servers killed")
            self.faults_over.wait(lasts)
            s.start()
            s.wait()
        elif kind == "failover":
            if world.stable(20):
                for s in world.sentinels:
                    try:
                        Redis(s[0])("SENTINEL", "FAILOVER", "service")
                        break
                    except (Gone, Refused):
                        pass
                world.stable(30)
        elif kind == "kill master":
            if world.stable(20):
                s = world.master
                s.kill()
                self.count("servers killed")
                self.faults_over.wait(lasts)
                s.start()
                s.wait()
                world.stable(30)
        elif kind == "kill replica":
            if world.stable(20):
                s = [s for s in world.servers if s is not world.master][0]
                s.kill()
                self.count("servers killed")
                self.faults_over.wait(lasts)
                s.start()
                s.wait()
        elif kind == "kill sentinel":
            s = world.sentinels[more[0]]
            s[3].kill()
            s[3].wait()
            self.children.forget(s[3])
            self.count("sentinels killed")
            self.faults_over.wait(lasts)
            world.start_sentinel(more[0])
        elif kind == "move":
            world.move(*more)

    def do_settings(self, world, kind, lasts, more):
        if kind == "rights":
            world.on_all("ACL", "SETUSER", "worker", *more)
            self.count("rights taken away")
            self.faults_over.wait(lasts)
            world.insist_on_all("ACL", "SETUSER", "worker", "reset", "on",
                                ">" + PASSWORD, "~*", "&*", "+@all")
        elif kind == "memory":
            world.on_all("CONFIG", "SET", "maxmemory", "1")
            self.count("memory filled up")
            self.faults_over.wait(lasts)
            world.insist_on_all("CONFIG", "SET", "maxmemory", "0")
        elif kind == "clock":
            world.set_clock(world.offset_us + more[0] * 1000)
            with open(self.clock_path, "r+b") as f:
                f.write((-world.offset_us * 3).to_bytes(8, sys.byteorder,
                                                        signed=True))
            self.count("clocks set")
        elif kind == "scripts":
            world.on_all("SCRIPT", "FLUSH")
            self.count("scripts flushed")
        elif kind == "clients":
            world.on_all("CLIENT", "KILL", "TYPE", "normal")
            self.count("all clients killed")
        elif kind == "subscribers":
            world.on_all("CLIENT", "KILL", "TYPE", "pubsub")
            self.count("all subscribers killed")
        elif kind == "pause writes":
            world.on_all("CLIENT", "PAUSE", int(lasts * 1000), "WRITE")
            self.count("writes paused")
            self.faults_over.wait(lasts)
        elif kind == "replicas":
            world.on_all("CONFIG", "SET", "min-replicas-to-write", "9")
            self.count("replicas missing")
            self.faults_over.wait(lasts)
            world.insist_on_all("CONFIG", "SET", "min-replicas-to-write", "0")
        elif kind == "busy":
            world.on_all("CONFIG", "SET", "busy-reply-threshold", "100")
            self.count("servers busy with a script")
            for s in world.servers:
                try:
                    s.redis("EVAL", "local n = 0 repeat for i = 1, 99999 do "
                            "end n = n + 1 until n > 500", 0,
                            timeout=30)
                except (Gone, Refused):
                    pass

    def run_lane(self, world, lane):
        do = getattr(self, "do_" + lane)
        for at, name, of, kind, lasts, more in self.plan:
            if (name, of) != (world.name, lane):
                continue
            self.faults_over.wait(max(0, self.began + at - time.time()))
            if self.faults_over.is_set():
                break
            try:
                do(world, kind, lasts, more)
                self.count("faults")
            except (Gone, Refused, OSError) as e:
                # Another fault was active.
                self.count("faults that another one has prevented")
                world.write("#", kind, more, e)

    def run_thread(self, world, lane):
        try:
            if lane == "tool":
                self.run_tool(world)
            else:
                self.run_lane(world, lane)
        except BaseException as e:
            world.write("!", now_us(), "the rig's lane %s: %r" % (lane, e))
        with self.count_lock:
            self.busy_lanes -= 1
        self.over.wait()  # its child processes end with this thread

    # --- the tool -----------------------------------------------------------

    def run_tool(self, world):
        """One command after the other, for a queue of this world."""
        r = random.Random("%s/%s/tool" % (self.seed, world.name))
        path = os.path.join(self.histories, "tool-%s.history" % world.name)
        url = world.url()
        number, self.tool_id = 0, 0
        with self.count_lock:
            self.instances += 1
            next_id = self.instances * 1000000
        with open(path, "w", buffering=1) as f:
            f.write("h %d today tool %s jobs %d 0 0 0\n" % (
                now_us(), world.name, LEASE_MS))

            def tool(*argv):
                p = self.children.start(
                    ["build/delayq"] + list(argv), stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, text=True,
                    env=dict(os.environ, DELAYQ_URL=url))
                self.count("commands of the tool")
                kill = r.randrange(20) == 0
                if kill:
                    time.sleep(r.uniform(0, 0.05))
                    p.kill()
                out = p.communicate()[0]
                self.children.forget(p)
                if p.returncode < 0 and not kill and not self.interrupted:
                    world.write("!", now_us(), "delayq %s ends with signal %d"
                                % (" ".join(argv), -p.returncode))
                return p.returncode, out

            def result(code, ticket="-"):
                status = {0: 0, 1: 2, 2: -1, 3: -2, 4: -4}.get(code, -10)
                f.write("r %d %d %d %s\n" % (now_us(), number, status, ticket))

            while not self.faults_over.wait(r.uniform(0.2, 0.8)):
                number += 1
                what = r.randrange(10)
                if what < 5:
                    next_id += 1
                    delay = r.choice((0, 100, 900))
                    head = "<%x %d>" % (next_id, 60)
                    text = head + "".join(
                        chr(97 + (i * 7 + next_id) % 26)
                        for i in range(len(head), 60))
                    f.write("o %d %d %d %d - 0\n" % (now_us(), number, next_id,
                                                     delay))
                    code, out = tool("offer", "jobs", "%dms" % delay, text)
                    result(code, out.strip() or "-")
                elif what < 8:
                    begin = now_us()
                    code, out = tool("take", "jobs", "--lease", "3s",
                                     "--max-attempts", str(ATTEMPTS), "--json")
                    for line in out.splitlines():
                        try:
                            item = json.loads(line)
                            item_id = int(item["payload"][1:].split()[0], 16)
                        except (ValueError, KeyError):
                            continue
                        f.write("T %d %d %d %d %d 0 %s 0\n" % (
                            begin, now_us(), item_id, item.get("attempt", 0),
                            item.get("due_ms", 0), item["ticket"]))
                        verb = r.choice(("ack", "ack", "nack", "bury"))
                        f.write("%s %d %d %d %s 0\n" % (
                            verb[0], now_us(), number, item_id,
                            item["ticket"]))
                        argv = [verb, "jobs", item["ticket"]]
                        if verb == "nack":
                            argv.append("0")
                        code, _ = tool(*argv)
                        result(code)
                elif what == 8:
                    tool("peek", "jobs")
                    tool("list")
                else:
                    f.write("v %d %d\n" % (now_us(), number))
                    code, _ = tool("redrive", "jobs")
                    result(code)

    # --- the run ------------------------------------------------------------

    def start(self):
        for kind in (World, Sentinel, Cluster):
            name = kind.kind
            w = kind(name, self.folder, self.program, self.children, self)
            self.worlds[name] = w
            w.start()
            for q, p in QUEUES[name].items():
                outboxes = any(s[0] in ("frames", "kept") for s in SLOTS[name]
                               if s[1] == q)
                w.write("Q", q, "attempts=%d" % p.get("attempts", 0),
                        "counted=%d" % p.get("counters", 0),
                        "ordered=%d" % (not outboxes))
            slots = [Slot(self, w, i, *s) for i, s in enumerate(SLOTS[name])]
            if name == "alone" and self.tls:
                slots += [Slot(self, w, len(slots) + i, *s, tls=True)
                          for i, s in enumerate(TLS_SLOTS)]
            self.slots[name] = slots

    def run(self):
        self.start()
        for slots in self.slots.values():
            for s in slots:
                s.start()
        self.began = time.time()
        threads = []
        for w in self.worlds.values():
            for lane in LANES:
                threads.append(threading.Thread(
                    target=self.run_thread, args=(w, lane), daemon=True))
        self.busy_lanes = len(threads)
        for t in threads:
            t.start()
        end = self.began + self.seconds
        while time.time() < end and not self.interrupted:
            for slots in self.slots.values():
                for s in slots:
                    s.check()
            time.sleep(0.25)
        self.faults_over.set()
        if self.interrupted:
            return
        self.calm()
        self.drain()
        self.collect()

    def wait_all(self, slots, seconds, what):
        end = time.time() + seconds
        for s in slots:
            if not s.ended(max(0.1, end - time.time())):
                s.complain("hangs " + what)
                s.process.send_signal(signal.SIGABRT)
                s.ended(5)
                s.kill()
            else:
                s.check_end()
                self.children.forget(s.process)

    def calm(self):
        """All faults end, then all processes."""
        self.say("the faults are over")
        while self.busy_lanes:  # each lane ends its fault, and undoes it
            time.sleep(0.1)
        for w in self.worlds.values():
            w.heal()
        all_slots = [s for slots in self.slots.values() for s in slots]
        for s in all_slots:
            s.freeze(False)
            s.terminate()
        self.wait_all(all_slots, 90, "after SIGTERM")
        kept = [s for s in all_slots if s.role == "kept"]
        for s in kept:
            s.expected = True
            s.start(["drain=1"])
        self.wait_all(kept, 90, "with a kept outbox")

    def drain(self):
        """Everything that is due is taken and acked."""
        for w in self.worlds.values():
            for q in QUEUES[w.name]:
                w.write("g", now_us(), q)
                for _ in range(60):
                    p = self.children.start(
                        ["build/delayq", "resume", q], env=dict(
                            os.environ, DELAYQ_URL=w.url()),
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    code = p.wait()
                    self.children.forget(p)
                    if code == 0:
                        break
                    time.sleep(0.5)
        drains = []
        for w in self.worlds.values():
            for i, q in enumerate(QUEUES[w.name]):
                for k, v in enumerate(NEW):
                    s = Slot(self, w, 90 + 2 * i + k, "work", q, (v,))
                    s.start(["drain=1"])
                    drains.append(s)
        end = time.time() + 150
        left, least = None, None
        while time.time() < end and not self.interrupted:
            left = {(w.name, q): self.due(w, q) for w in self.worlds.values()
                    for q in QUEUES[w.name]}
            if not any(left.values()):
                break
            # a busy machine is slow; what goes on is not stuck
            if least is None or sum(left.values()) < least:
                least = sum(left.values())
                end = max(end, time.time() + 60)
            for s in drains:
                s.check()
            time.sleep(0.5)
        for (name, q), n in left.items():
            if n:
                self.worlds[name].write("!", now_us(), "%d due items of %s "
                                        "are not drained" % (n, q))
        for s in drains:
            s.terminate()
        self.wait_all(drains, 60, "after the end")

    def due(self, w, q):
        """How many items could be taken, now or within ten minutes?"""
        for _ in range(20):
            try:
                redis = w.master_of(q).redis
                soon = (now_us() + w.offset_us) // 1000 + 600000
                return (redis("ZCOUNT", zset(q), "-inf", soon) +
                        redis("LLEN", q) + redis("LLEN", retry(q)))
            except (Gone, Refused):
                time.sleep(0.5)
        return -1

    def collect(self):
        for w in self.worlds.values():
            for q in QUEUES[w.name]:
                self.collect_queue(w, q)
            for k, n in w.count_proxy().items():
                if k == "bytes":
                    self.counts["proxies: bytes"] += n
                elif k == "connections":
                    self.counts["proxies: connections"] += n

    def collect_queue(self, w, q):
        redis = w.master_of(q).redis

        def write(state, element, score=0, attempt=0, reason="-"):
            m = ELEMENT_ID.search(element)
            if m:
                w.write("F", q, state, int(m[1], 16), score, attempt, reason)
            else:
                w.write("!", now_us(), "%s of %s is no item: %r" % (
                    state, q, element[:60]))

        members = redis("ZRANGE", zset(q), 0, -1, "WITHSCORES", timeout=30)
        for e, score in zip(members[::2], members[1::2]):
            write("pending", e, int(float(score)))
        for e in redis("LRANGE", q, 0, -1, timeout=30):
            write("ready", e)
        for e in redis("LRANGE", retry(q), 0, -1, timeout=30):
            write("retry", e)
        for e in redis("LRANGE", "redisson_delay_queue:{%s}" % q, 0, -1,
                       timeout=30):
            write("mirror", e)
        for e in redis("LRANGE", "delayq_dead:{%s}" % q, 0, -1, timeout=30):
            head, element = e.split(b"\n", 1)
            attempt = int.from_bytes(element[15:17], "big") \
                if element[:1] == b"\x10" else 0
            write("dead", element, attempt=attempt,
                  reason=head.split(b" ")[0].decode())
            self.count("dead letters at the end")
        all_of = redis("HGETALL", "delayq_counters:{%s}" % q)
        for k, v in zip(all_of[::2], all_of[1::2]):
            w.write("C", q, k.decode(), int(v))

    def say(self, text):
        if sys.stderr.isatty():
            print("    %s" % text, file=sys.stderr)

    def end(self):
        self.faults_over.set()
        for w in self.worlds.values():
            w.stop_background()
        self.children.end()
        self.over.set()
        for w in self.worlds.values():
            w.history.close()


def zset(q):
    return "redisson_delay_queue_timeout:{%s}" % q


def retry(q):
    return "delayq_retry:{%s}" % q


# --- the verdict --------------------------------------------------------------

STATUSES = {0: "done", 2: "gone", 3: "duplicate", -10: "unknown"}


def print_table(rig, j):
    rows = [(k, n) for k, n in sorted(rig.counts.items())]
    names = {"o": "offers", "a": "acks", "n": "nacks", "x": "extends",
             "b": "buries", "c": "cancels", "s": "reschedules",
             "f": "cancelled keys", "z": "pauses", "v": "redrives"}
    rows.append(("takes of an item", j.events["T"]))
    for kind, name in names.items():
        told = Counter()
        for k, n in j.events.items():
            if k.startswith(kind + " "):
                told[STATUSES.get(int(k.split()[1]), "failed")] += n
        total = j.events[kind]
        rows.append((name, "%d: %s" % (total, ", ".join(
            "%d %s" % (n, k) for k, n in sorted(told.items())) +
            (", %d without a result" % (total - sum(told.values()))
             if total > sum(told.values()) else ""))))
    rows.append(("ops accepted by a kept outbox",
                 j.events["accepted by a kept outbox"]))
    rows.append(("failures that calls returned", j.events["e"]))
    rows.append(("TLS", "one server also has a TLS port" if rig.tls else
                 "not here: hiredis has no TLS"))
    for k, v in rows:
        print("%-40s %s" % (k, v))


def print_verdicts(j):
    """Returns passed, failed."""
    passed = failed = 0
    print("%-62s %9s %9s %9s" % ("", *QUEUES))
    for key, text in judge.INVARIANTS:
        cells = []
        for world in QUEUES:
            n = sum(f.invariant == key and f.world == world
                    for f in j.findings)
            asked = j.judged[world, key]
            if n:
                failed += 1
                cells.append("%d FAIL" % n)
            elif asked:
                passed += 1
                cells.append(str(asked))
            else:
                cells.append("-")
        print("%-62s %9s %9s %9s" % (text, *cells))
    print("Numbers: how often it was checked. Items that a failover has "
          "touched and\nthat are judged no further: %d."
          % sum(n for (_, k), n in j.judged.items() if k == "disturbed"))
    return passed, failed


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=int, default=120)
    a.add_argument("--seed", type=int,
                   default=random.SystemRandom().randrange(1, 1000000))
    a.add_argument("--plan", action="store_true")
    a.add_argument("--keep", action="store_true")
    options = a.parse_args()
    if options.plan:
        for fault in make_plan(options.seed, options.seconds):
            print(*fault)
        return 0
    proven, unproven = judge_test.run()
    print("the judge finds what it should in %d histories, and fails with %d"
          % (proven, unproven))
    rig = Rig(options)

    def interrupt(sig, frame):
        rig.interrupted = True
        rig.faults_over.set()

    def give_up(sig, frame):
        raise SystemExit("the rig hangs")

    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, interrupt)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(rig.seconds + 1200)
    digest = hashlib.sha1(repr(rig.plan).encode()).hexdigest()[:12]
    print("SEED=%d SECONDS=%d: %d faults planned, plan %s" % (
        rig.seed, rig.seconds, len(rig.plan), digest), flush=True)
    began = time.time()
    try:
        rig.run()
    finally:
        rig.end()
    if rig.interrupted:
        remove(rig.folder)
        print("interrupted")
        return 130
    j = judge.judge_folder(rig.histories)
    print_table(rig, j)
    passed, failed = print_verdicts(j)
    for f in j.findings[:40]:
        print("FAIL", f, "[%s]" % " ".join(f.versions))
    if len(j.findings) > 40:
        print("... and %d more" % (len(j.findings) - 40))
    if j.findings or options.keep:
        kept = os.path.join(BUILD, "histories-%d" % rig.seed)
        remove(kept)
        shutil.move(rig.histories, kept)
        print("The histories are in %s; repeat with SEED=%d SECONDS=%d." % (
            kept, rig.seed, rig.seconds))
    remove(rig.folder)
    print("%d s in all" % (time.time() - began))
    print("%d passed, %d failed, 0 skipped" % (passed + proven,
                                               failed + unproven))
    return 1 if failed or unproven else 0


if __name__ == "__main__":
    sys.exit(main())
