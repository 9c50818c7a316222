"""The servers of the rig: one alone, a master and a replica under Sentinel, a
cluster. Each has a proxy before its ports, and a clock that can be set."""

import mmap
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

BUILD = "build/rig"
PASSWORD = "secret"


def now_us():
    return time.time_ns() // 1000


class Gone(Exception):
    """The server does not answer."""


class Refused(Exception):
    """It answers with an error."""


class Redis:
    """A connection to a server; made anew after each failure."""

    def __init__(self, port, timeout=5.0):
        self.port, self.timeout = port, timeout
        self.socket = self.file = None
        self.lock = threading.Lock()

    def close(self):
        if self.socket:
            self.file.close()
            self.socket.close()
        self.socket = self.file = None

    def __call__(self, *words, timeout=None):
        with self.lock:
            try:
                if not self.socket:
                    self.socket = socket.create_connection(
                        ("127.0.0.1", self.port), 2)
                    self.file = self.socket.makefile("rb")
                self.socket.settimeout(timeout or self.timeout)
                out = [b"*%d\r\n" % len(words)]
                for w in words:
                    w = w if isinstance(w, bytes) else str(w).encode()
                    out.append(b"$%d\r\n%s\r\n" % (len(w), w))
                self.socket.sendall(b"".join(out))
                return self.reply()
            except (OSError, ValueError) as e:
                self.close()
                raise Gone(str(e)) from None

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the connection has ended")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(rest.decode(errors="replace"))
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        n = int(rest)
        if n < 0:
            return None
        if kind == b"$":
            data = self.file.read(n + 2)
            if len(data) != n + 2:
                raise OSError("the connection has ended")
            return data[:-2]
        all_of, failed = [], None
        for _ in range(n):
            try:
                all_of.append(self.reply())
            except Refused as e:
                failed = e
        if failed:
            raise failed
        return all_of


_given = set()
_given_lock = threading.Lock()


def free_port():
    """A free loopback port below the ephemeral ones. Port + 10,000 is free,
    too, for a cluster's bus."""
    with _given_lock:
        while True:
            port = random.SystemRandom().randrange(11000, 20000)
            if port in _given:
                continue
            try:
                for p in (port, port + 10000):
                    with socket.socket() as s:
                        s.bind(("127.0.0.1", p))
            except OSError:
                continue
            _given.add(port)
            return port


class Children:
    """All processes of the rig. Those that are alive at its end are killed by
    their pid."""

    def __init__(self):
        self.all, self.lock = set(), threading.Lock()

    def start(self, argv, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        p = subprocess.Popen([BUILD + "/leash"] + argv, **more)
        with self.lock:
            self.all.add(p)
        return p

    def forget(self, p):
        with self.lock:
            self.all.discard(p)

    def end(self):
        with self.lock:
            for p in self.all:
                if p.poll() is None:
                    p.kill()  # this also ends a stopped process
            for p in self.all:
                p.wait()
            self.all.clear()


class Server:
    """A redis-server, and the port of its proxy."""

    def __init__(self, world, name, more):
        self.world, self.name, self.more = world, name, more
        self.port, self.proxy_port = free_port(), free_port()
        self.dir = os.path.join(world.dir, name)
        os.makedirs(self.dir)
        self.process, self.frozen = None, False
        self.redis = Redis(self.port)

    def start(self):
        argv = [self.world.program, "--port", str(self.port), "--bind",
                "127.0.0.1", "--dir", self.dir, "--save", "", "--appendonly",
                "yes", "--appendfsync", "always", "--user", "default", "on",
                "nopass", "~*", "&*", "+@all", "--user", "worker", "on",
                ">" + PASSWORD, "~*", "&*", "+@all", "--logfile",
                os.path.join(self.dir, "log"), "--daemonize", "no"]
        env = dict(os.environ, LD_PRELOAD=os.path.abspath(
            BUILD + "/settime.so"), SETTIME=self.world.clock_path)
        self.process = self.world.children.start(
            argv + self.more, env=env, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.frozen = False

    def wait(self):
        """Until it answers."""
        for _ in range(1200):
            try:
                self.redis("PING")
                return
            except Refused:
                pass
            except Gone:
                if self.process.poll() is not None:
                    break
            time.sleep(0.05)
        with open(os.path.join(self.dir, "log")) as f:
            print(f.read()[-2000:])
        raise SystemExit("a server does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.world.children.forget(self.process)
        self.frozen = False

    def freeze(self, on):
        if on != self.frozen and self.process.poll() is None:
            self.process.send_signal(
                signal.SIGSTOP if on else signal.SIGCONT)
            self.frozen = on


class World:
    kind = "alone"

    def __init__(self, name, folder, program, children, rig):
        self.name, self.program, self.children = name, program, children
        self.rig = rig
        self.dir = os.path.join(folder, name)
        os.makedirs(self.dir)
        self.clock_path = os.path.join(self.dir, "clock")
        with open(self.clock_path, "wb") as f:
            f.write(bytes(8))
        self.clock_file = open(self.clock_path, "r+b")
        self.clock = mmap.mmap(self.clock_file.fileno(), 8)
        self.offset_us = 0
        self.history = open(os.path.join(
            rig.histories, "driver-%s.history" % name), "w", buffering=1)
        self.write("h", now_us(), "driver", "driver", name, "-", 0, 0, 0, 0)
        self.servers, self.proxy = [], None
        self.proxy_lock = threading.Lock()

    def write(self, *words):
        self.history.write(" ".join(map(str, words)) + "\n")

    def set_clock(self, offset_us):
        begin = now_us()
        self.clock[:8] = struct.pack("=q", offset_us)
        self.offset_us = offset_us
        self.write("k", begin, now_us(), offset_us)

    def insist(self, server, *words, timeout=None):
        """A command that has to succeed: after a move that stops halfway, for
        example, the keys would be on two servers."""
        for _ in range(1200):
            try:
                return server.redis(*words, timeout=timeout)
            except Refused as e:
                if "BUSYKEY" in str(e):
                    self.write("!", now_us(), "a key is on two servers:",
                               *words)
                    raise
                if "IOERR" in str(e) and words[-1] != "REPLACE":
                    words += ("REPLACE",)  # the first attempt may have arrived
            except Gone:
                if words[0] == "MIGRATE" and words[-1] != "REPLACE":
                    words += ("REPLACE",)
            time.sleep(0.1)
        raise SystemExit("%s: %s is refused" % (server.name, words))

    # --- the proxy ----------------------------------------------------------

    def start_proxy(self, ports):
        self.proxy = self.children.start(
            [BUILD + "/proxy", str(self.rig.seed)] + ports,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            bufsize=1)
        if self.proxy.stdout.readline() != "ready\n":
            raise SystemExit("the proxy does not start")

    def tell_proxy(self, line):
        with self.proxy_lock:
            try:
                self.proxy.stdin.write(line + "\n")
            except OSError:
                pass

    def count_proxy(self):
        with self.proxy_lock:
            self.proxy.stdin.write("count\n")
            words = self.proxy.stdout.readline().replace(",", "").split()
        return {words[i]: int(words[i + 1]) for i in range(0, len(words), 2)}

    # --- one server alone ---------------------------------------------------

    def start(self):
        more = []
        self.tls_port = None
        if self.rig.tls:
            self.tls_port, self.tls_proxy_port = free_port(), free_port()
            self.certificates()
            more = ["--tls-port", str(self.tls_port), "--tls-cert-file",
                    self.dir + "/server.crt", "--tls-key-file",
                    self.dir + "/server.key", "--tls-ca-cert-file",
                    self.dir + "/ca.crt", "--tls-auth-clients", "no"]
        self.servers = [Server(self, "server", more)]
        self.servers[0].start()
        self.servers[0].wait()
        ports = ["%d=%d" % (self.servers[0].proxy_port, self.servers[0].port)]
        if self.tls_port:
            ports.append("%d=%d" % (self.tls_proxy_port, self.tls_port))
        self.start_proxy(ports)

    def certificates(self):
        run = lambda *a: subprocess.run(
            ["openssl"] + list(a), cwd=self.dir, check=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
               "-nodes"]
        run("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt",
            "-days", "2", "-subj", "/CN=authority")
        run("req", *new, "-keyout", "server.key", "-out", "request",
            "-subj", "/CN=server")
        with open(self.dir + "/extensions", "w") as f:
            f.write("subjectAltName=IP:127.0.0.1\n")
        run("x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey",
            "ca.key", "-CAcreateserial", "-extfile", "extensions", "-days",
            "2", "-out", "server.crt")

    def url(self, tls=False):
        if tls:
            return "rediss://worker:%s@127.0.0.1:%d" % (
                PASSWORD, self.tls_proxy_port)
        return "redis://worker:%s@127.0.0.1:%d" % (
            PASSWORD, self.servers[0].proxy_port)

    def on_all(self, *words):
        """A command on each server that answers."""
        for s in self.servers:
            try:
                s.redis(*words)
            except (Gone, Refused):
                pass

    def insist_on_all(self, *words):
        for s in self.servers:
            self.insist(s, *words)

    def master_of(self, queue):
        return self.servers[0]

    def heal(self):
        for s in self.servers:
            s.freeze(False)
            if s.process.poll() is not None:
                s.start()
            s.wait()
        for s in self.servers:
            for words in (("ACL", "SETUSER", "worker", "reset", "on",
                           ">" + PASSWORD, "~*", "&*", "+@all"),
                          ("CONFIG", "SET", "maxmemory", "0"),
                          ("CONFIG", "SET", "min-replicas-to-write", "0"),
                          ("CLIENT", "UNPAUSE")):
                self.insist(s, *words)
        self.tell_proxy("calm")

    def stop_background(self):
        pass


class Sentinel(World):
    kind = "sentinel"

    def start(self):
        self.servers = [Server(self, "a", [])]
        self.servers.append(Server(self, "b", [
            "--replicaof", "127.0.0.1", str(self.servers[0].port)]))
        for s in self.servers:
            s.more = s.more + ["--repl-diskless-sync-delay", "0",
                               "--repl-backlog-size", "32mb"]
            s.start()
            s.wait()
        self.sentinels = []
        for i in range(3):
            port, proxy = free_port(), free_port()
            path = os.path.join(self.dir, "sentinel%d.conf" % i)
            with open(path, "w") as f:
                f.write("port %d\nbind 127.0.0.1\ndir %s\nlogfile %s.log\n"
                        "user worker on >%s ~* &* +@all\n"
                        "sentinel monitor service 127.0.0.1 %d 2\n"
                        "sentinel down-after-milliseconds service 4000\n"
                        "sentinel failover-timeout service 12000\n" % (
                            port, self.dir, path, PASSWORD,
                            self.servers[0].port))
            self.sentinels.append([port, proxy, path, None])
            self.start_sentinel(i)
        ports = ["%d=%d" % (s.proxy_port, s.port) for s in self.servers]
        ports += ["%d=%d,map" % (s[1], s[0]) for s in self.sentinels]
        self.start_proxy(ports)
        for i in range(3):
            ask = Redis(self.sentinels[i][0])
            for _ in range(1200):
                try:
                    r = ask("SENTINEL", "MASTER", "service")
                    m = dict(zip(r[::2], r[1::2]))
                    if m[b"num-slaves"] == b"1" and \
                            m[b"num-other-sentinels"] == b"2":
                        break
                except (Gone, Refused):
                    pass
                time.sleep(0.05)
            ask.close()
        self.master, self.mark_us, self.window_us = None, now_us(), None
        self.switches = 0
        self.quit = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def start_sentinel(self, i):
        self.sentinels[i][3] = self.children.start(
            [self.program, self.sentinels[i][2], "--sentinel"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def url(self, tls=False):
        return "redis+sentinel://worker:%s@%s/service/0" % (
            PASSWORD, ",".join("127.0.0.1:%d" % s[1] for s in self.sentinels))

    def roles(self):
        """The only master, if the other server is its replica, and all
        sentinels that answer name it."""
        said = set()
        for s in self.sentinels:
            try:
                ask = Redis(s[0], 1)
                said.add(int(ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME",
                                 "service")[1]))
                ask.close()
            except (Gone, Refused, TypeError):
                pass
        if len(said) != 1:
            return None
        port = said.pop()
        master = [s for s in self.servers if s.port == port]
        replica = [s for s in self.servers if s.port != port]
        if len(master) != 1:
            return None
        try:
            if Redis(port, 1)("ROLE")[0] != b"master":
                return None
            role = Redis(replica[0].port, 1)("ROLE")
            if role[0] != b"slave" or role[2] != port or \
                    role[3] != b"connected":
                return None
        except (Gone, Refused, IndexError):
            return None
        return master[0]

    def watch(self):
        """Note from when on each change has reached the replica. If another
        server becomes the master, all later changes may be lost."""
        while not self.quit.is_set():
            begin = now_us()
            master = self.roles()
            if master:
                try:
                    c = Redis(master.port, 1)
                    c("SET", "rig-mark", begin)
                    good = c("WAIT", 1, 500, timeout=2) >= 1
                    c.close()
                    good = good and self.roles() is master
                except (Gone, Refused):
                    good = False
                if good:
                    if self.master and self.master is not master:
                        self.write("w", self.mark_us, now_us(), "failover")
                        self.switches += 1
                        self.rig.count("failovers")
                    self.master, self.mark_us = master, begin
            self.quit.wait(0.2)

    def stable(self, seconds):
        """Wait until a master and its replica are in step."""
        end, begin = time.time() + seconds, now_us()
        while time.time() < end and not self.rig.interrupted:
            if self.mark_us > begin:
                return True
            time.sleep(0.1)
        return False

    def master_of(self, queue):
        return self.master or self.servers[0]

    def heal(self):
        for i in range(3):
            if self.sentinels[i][3].poll() is not None:
                self.start_sentinel(i)
        World.heal(self)
        if not self.stable(120):
            self.write("!", now_us(), "Sentinel has no master and replica: "
                       "a fault of the rig, or of Redis")

    def stop_background(self):
        self.quit.set()
        self.watcher.join()


class Cluster(World):
    kind = "cluster"
    moves = 0

    def start(self):
        for i in range(3):
            s = Server(self, "n%d" % i, [])
            s.more = ["--cluster-enabled", "yes", "--cluster-node-timeout",
                      "15000", "--cluster-require-full-coverage", "no",
                      "--cluster-announce-port", str(s.proxy_port),
                      "--cluster-announce-bus-port", str(s.port + 10000)]
            self.servers.append(s)
            s.start()
        for i, s in enumerate(self.servers):
            s.wait()
            slots = [i * 16384 // 3, (i + 1) * 16384 // 3 - 1]
            s.redis("CLUSTER", "ADDSLOTS", *range(slots[0], slots[1] + 1))
            s.redis("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for s in self.servers[1:]:
            s.redis("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port,
                    self.servers[0].port + 10000)
        self.start_proxy(["%d=%d" % (s.proxy_port, s.port)
                          for s in self.servers])
        for s in self.servers:
            s.id = s.redis("CLUSTER", "MYID").decode()
        self.wait_ok()

    def wait_ok(self):
        for _ in range(2400):
            try:
                info = [s.redis("CLUSTER", "INFO") for s in self.servers]
                if all(b"cluster_state:ok" in i and b"cluster_known_nodes:3" in
                       i and b"cluster_slots_assigned:16384" in i
                       for i in info):
                    return True
            except (Gone, Refused):
                pass
            time.sleep(0.05)
        return False

    def url(self, tls=False):
        return "redis://worker:%s@%s" % (PASSWORD, ",".join(
            "127.0.0.1:%d" % s.proxy_port for s in self.servers))

    def owner(self, slot):
        """The server that has the slot, by all of them."""
        said = set()
        for s in self.servers:
            for line in s.redis("CLUSTER", "NODES").decode().splitlines():
                w = line.split()
                for r in w[8:]:
                    m = re.match(r"^(\d+)(?:-(\d+))?$", r)
                    if m and int(m[1]) <= slot <= int(m[2] or m[1]):
                        said.add(w[0])
        owner = [s for s in self.servers if s.id in said]
        return owner[0] if len(said) == 1 else None

    def master_of(self, queue):
        for _ in range(1200):
            try:
                owner = self.owner(self.servers[0].redis(
                    "CLUSTER", "KEYSLOT", "{%s}" % queue))
                if owner:
                    return owner
            except (Gone, Refused):
                pass
            time.sleep(0.1)
        raise SystemExit("the slot has no owner")

    def move(self, queue, pause_s):
        """Move the queue's slot to another server, key by key."""
        begin = now_us()
        source = self.master_of(queue)
        slot = self.insist(source, "CLUSTER", "KEYSLOT", "{%s}" % queue)
        others = [s for s in self.servers if s is not source]
        target = others[self.moves % 2]
        self.moves += 1
        self.insist(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        self.insist(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        moved = 0
        while True:
            keys = self.insist(source, "CLUSTER", "GETKEYSINSLOT", slot, 1)
            if not keys:
                break
            self.insist(source, "MIGRATE", "127.0.0.1", target.port, keys[0],
                        0, 60000, timeout=70)
            moved += 1
            time.sleep(pause_s)
        for s in [target, source] + [o for o in others if o is not target]:
            self.insist(s, "CLUSTER", "SETSLOT", slot, "NODE", target.id)
        self.write("m", begin, now_us())
        self.rig.count("slots moved")
        self.rig.count("keys moved with them", moved)

    def heal(self):
        World.heal(self)
        if not self.wait_ok():
            self.write("!", now_us(), "the cluster does not recover: a fault "
                       "of the rig, or of Redis")


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
