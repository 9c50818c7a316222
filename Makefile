# delayq: one header; this builds its examples, tests and benches.
# `make help` lists the targets.

CC ?= cc
CXX ?= c++
CFLAGS ?= -O2 -g
PREFIX ?= /usr/local
DESTDIR ?=
HIREDIS_CFLAGS ?=
HIREDIS_LIBS ?= -lhiredis

B := build
VERSION := $(shell sed -n 's/^\#define DELAYQ_VERSION "\(.*\)"/\1/p' delayq.h)
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined \
       -fno-omit-frame-pointer
ALL_CFLAGS = $(CFLAGS) $(CPPFLAGS) $(HIREDIS_CFLAGS) -I.
EXAMPLES := $(filter-out tool/% device/hiredis_net,$(patsubst examples/%.c,%,\
    $(wildcard examples/*.c examples/*/*.c))) delayq
TOOL := $(wildcard examples/tool/*.c)
TESTS := $(wildcard tests/*.c)
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
BENCHES := $(patsubst tests/bench/%.c,%,$(wildcard tests/bench/*.c))
FUZZERS := $B/fuzz-url $B/fuzz-element $B/fuzz-reply $B/fuzz-image
FUZZ_SECONDS ?= 30
HIREDIS_STATIC ?= -l:libhiredis.a
WRAPS := malloc calloc realloc strdup hi_malloc hi_strdup sdsempty \
         redisBufferWrite redisReaderFeed

all: examples ## build the examples (default)

examples: $(EXAMPLES:%=$B/%) ## build the examples into build/

$B/%: examples/%.c delayq.h
	@mkdir -p $(@D)
	$(CC) -std=c99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) -o $@

# Those of `make test`: they take a quarter of the time to compile. The tool is
# compiled for its own tests.
EXAMPLES_O0 := $(patsubst %,$B/o0/%,$(filter-out delayq,$(EXAMPLES)) line)
$B/o0/%: examples/%.c delayq.h
	@mkdir -p $(@D)
	$(CC) -std=c99 $(WARN) $(ALL_CFLAGS) -O0 -g0 $< $(LDFLAGS) $(HIREDIS_LIBS) \
	    -o $@

demo: ## items arrive; a game runs on while the server is frozen
	@$(MAKE) --no-print-directory -j$(JOBS) $B/demo $B/game_loop $B/line
	@sh tests/with-server.sh sh -c '$B/demo && sh tests/frozen.sh $B'

test check: ## the tests under ASan and UBSan, the tool, the examples, the documentation
	@echo "== building"
	@$(MAKE) --no-print-directory -s -j$(JOBS) $B/test-asan $B/test-nonblock \
	    $B/delayq-asan $(EXAMPLES_O0)
	@CC='$(CC)' CXX='$(CXX)' sh tests/all.sh $B test

test-all: ## also leaks, valgrind, servers with UTF-8, make install, Prometheus
	@echo "== building"
	@$(MAKE) --no-print-directory -s -j$(JOBS) $B/test-asan $B/test-plain \
	    $B/test-nonblock $B/delayq-asan $B/line examples
	@CC='$(CC)' CXX='$(CXX)' sh tests/all.sh $B all

quick: ## the tests once, without sanitizers
	@$(MAKE) --no-print-directory -s -j$(JOBS) $B/test-plain
	@DELAYQ_TEST_PROGRESS=1 $B/test-plain $(ONLY) >$B/quick.out; code=$$?; \
	    LC_ALL=C grep -a -v '^ok ' $B/quick.out; exit $$code

nightly: ## all the rest: other systems, Java, hours of faults; ROWS="..." for some rows
	@bash tests/nightly.sh $(ROWS)

stress: ## make test beside stress-ng --cpu 4, RUNS=1 times; a flaky test is a failure
	@sh tests/stress.sh $(RUNS)

bare: ## README's commands in a bare Debian 12, 13 and Ubuntu 24.04 (needs root, debootstrap)
	@sh tests/bare.sh $(SUITES)

# the libraries of old versions, beside which today's is tested
TESTS += tests/old/peer_0_1.c tests/old/peer_0_2.c
# servers as providers run them
TESTS += tests/hosted/hosted.c
OLD_HEADERS := $B/old/0.1/delayq.h $B/old/0.2/delayq.h
$B/old/%.h: tests/old/%.h.gz
	@mkdir -p $(@D)
	@gzip -dc $< >$@

# tests of faults that an old version had, which compile with its header, too
FAULT_TESTS := tests/addresses.c tests/elements.c tests/hearing.c \
               tests/hostile.c tests/large.c tests/loops.c \
               tests/mixed.c tests/neighbours.c tests/refusals.c \
               tests/statuses.c tests/waiters.c
FAULT_TESTS_0_2 := tests/faults_0_2.c tests/mixed.c tests/outbox_idle.c
OLD_TESTS := tests/main.c tests/proxy.c tests/system.c tests/old/library.c \
             tests/old/peer_0_1.c tests/old/peer_0_2.c
old: $B/test-old-0.1 $B/test-old-0.2 ## the faults of tests/README.md, each shown on the old header
	@sh tests/old.sh $B/test-old- 0.1 0.2

asan: $B/test-asan ## the tests under ASan and UBSan
	$B/test-asan $(ONLY)

valgrind: $B/test-plain ## the tests under valgrind
	sh tests/valgrind.sh $B/test-plain $(ONLY)

memory: $B/test-memory ## make each of hiredis' allocations fail once
	$B/test-memory $(ONLY)

nonblock: $B/test-nonblock ## with an outbox no call of a frame waits
	$B/test-nonblock $(ONLY)

fuzz: ## fuzz URLs, elements, replies and images, each for FUZZ_SECONDS (30)
	@mkdir -p $B
	@if echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	    clang -fsanitize=fuzzer -x c - -o $B/fuzzer >/dev/null 2>&1; \
	    then $(MAKE) --no-print-directory $(FUZZERS); fi
	@sh tests/fuzz/run.sh $(FUZZ_SECONDS) $B

# with `make marks SEEDS=10000` the simulator's part is an hour
MARKS = $B/marks
marks: ## the rare branches that the simulator, the tests and the fuzzers reach; SEEDS=
	@mkdir -p $(MARKS)
	$(CC) -O1 -c tests/marks/marks.c -o $(MARKS)/marks.o
	@$(MAKE) --no-print-directory -s B=$(MARKS) LDFLAGS='$(MARKS)/marks.o \
	    $(LDFLAGS)' CPPFLAGS='-include tests/marks/marks.h $(CPPFLAGS)' \
	    $(MARKS)/sim $(MARKS)/test-plain \
	    $$(command -v clang >/dev/null && echo $(FUZZERS:$B/%=$(MARKS)/%))
	@sh tests/marks/run.sh $(MARKS) $(SEEDS) $(FUZZ_SECONDS)

proof: ## CBMC proves that reads of untrusted bytes stay within them; NAME=
	@HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' sh tests/proof/run.sh $(NAME)

models: ## spin visits all states of the protocols of outboxes and waiters; NAME=
	@sh tests/models/run.sh $(NAME)

lint: ## compilers, standards, names, the documentation's examples and links
	sh tests/hygiene.sh
	sh tests/docs.sh
	sh tests/lua.sh check $B

lua: ## the scripts as build/lua/NAME.lua, and their SHA1s in delayq.h
	@CC='$(CC)' HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' sh tests/lua.sh write $B

interop: $B/interop $B/redisson/example $B/delayq ## together with real Redisson (needs a JDK and Maven)
	sh tests/interop/run.sh $B/interop

SECONDS ?= 120
# SECONDS of soak is another default: `make sim SECONDS=60`
SEEDS ?= 1000
SIM_LUA_CFLAGS ?= -I/usr/include/lua5.1
SIM_LUA_LIBS ?= -l:liblua5.1.a -lm -ldl
SIM := world net sys memory redis redis_cmd redis_data redis_lua redis_reply \
       library actors check history scenario service main
SIM_FLAGS = -std=gnu99 -D_GNU_SOURCE -O2 -g -Wall -Wextra
SIM_SOURCES = $(SIM:%=tests/sim/%.c)
SIM_HEADERS = $(wildcard tests/sim/*.h) tests/sim/wrap.txt
SIM_LIBS = @tests/sim/wrap.txt $(LDFLAGS) $(HIREDIS_STATIC) $(SIM_LUA_LIBS)
# the simulator links a hiredis whose memory tests/sim/memory.c counts
SIM_HIREDIS = $(patsubst -l:%,$(shell $(CC) -print-file-name=$(patsubst \
    -l:%,%,$(HIREDIS_STATIC))),$(HIREDIS_STATIC))
SIM_COUNTED_LIBS = @tests/sim/wrap.txt $(LDFLAGS) $B/sim-hiredis.a \
    $(SIM_LUA_LIBS)
# what of it was given on the command line
SIM_ARGS = $(if $(filter command%,$(origin SEEDS)),--seeds $(SEEDS)) \
    $(if $(filter command%,$(origin SECONDS)),--seconds $(SECONDS)) \
    $(if $(filter command%,$(origin SEEDS) $(origin SECONDS)),,--seeds $(SEEDS)) \
    $(if $(FIRST),--first $(FIRST)) $(if $(PLAN),--plan $(PLAN))

sim: $B/sim ## hours of faults, simulated: 1,000 seeds, or SEEDS=, SECONDS=, or SEED= for one with its story
	@$(if $(SEED),$B/sim --seed $(SEED) $(if $(DROP),--drop $(DROP)), \
	    $B/sim --known tests/sim/seeds.txt $(SIM_ARGS))

sim-ubsan: $B/sim-ubsan ## 50 seeds of the simulator with UBSan and bounds checks
	@$B/sim-ubsan --first $(or $(FIRST),1) --seeds 50

sim-old: $B/sim-old-0.1 $B/sim-old-0.2 ## the simulator finds faults of 0.1 and 0.2
	@sh tests/sim/old.sh $B/sim-old-

# the header in the simulated world, without the simulator's actors
COST_SOURCES = $(patsubst %,tests/sim/%.c,world net sys redis redis_cmd \
    redis_data redis_lua redis_reply library cost)
cost: $B/sim-cost ## commands, bytes and round trips, exact; fails if one rose; WRITE=1 writes tests/sim/cost.txt
	@$B/sim-cost tests/sim/cost.txt $(if $(WRITE),--write)

$B/sim-cost: $(COST_SOURCES) $(SIM_HEADERS) delayq.h
	@mkdir -p $B
	$(CC) $(SIM_FLAGS) $(CPPFLAGS) $(HIREDIS_CFLAGS) $(SIM_LUA_CFLAGS) \
	    $(COST_SOURCES) $(SIM_LIBS) -o $@

SIM_PROGRAMS = $B/sim-world-test $B/sim-kernel-test $B/sim-model $B/sim-clock.so
sim-programs: $(SIM_PROGRAMS)
sim-test: $(SIM_PROGRAMS) ## test the simulator: its world, and its model beside a redis-server or SERVERS="PROGRAM..."
	@$B/sim-world-test
	@$B/sim-kernel-test
	@for server in $(or $(SERVERS),redis-server); do \
	    env -u SECONDS MODEL_SERVER=$$server $B/sim-model $B/sim-clock.so \
	    || exit 1; done

SIM_WORLD = tests/sim/world.c tests/sim/net.c tests/sim/sys.c
$B/sim-world-test: tests/sim/world_test.c $(SIM_WORLD) $(SIM_HEADERS)
	@mkdir -p $B
	$(CC) $(SIM_FLAGS) $(CPPFLAGS) $(HIREDIS_CFLAGS) $< $(SIM_WORLD) \
	    @tests/sim/wrap.txt $(LDFLAGS) $(HIREDIS_STATIC) -o $@

$B/sim-kernel-test: tests/sim/kernel_test.c $(SIM_WORLD) $(SIM_HEADERS)
	@mkdir -p $B
	$(CC) $(SIM_FLAGS) $(CPPFLAGS) $< $(SIM_WORLD) @tests/sim/wrap.txt \
	    $(LDFLAGS) -o $@

SIM_REDIS = $(wildcard tests/sim/redis*.c)
LUA_VERSIONS := 5.1 jit 5.4
MODELS := $B/sim-model $(LUA_VERSIONS:%=$B/sim-model-%)
$B/sim-model-jit: SIM_LUA_CFLAGS = -I/usr/include/luajit-2.1
$B/sim-model-jit: SIM_LUA_LIBS = -l:libluajit-5.1.a -lm -ldl
$B/sim-model-5.4: SIM_LUA_CFLAGS = -I/usr/include/lua5.4
$B/sim-model-5.4: SIM_LUA_LIBS = -l:liblua5.4.a -lm -ldl
$(MODELS): tests/sim/model.c tests/sim/model_driver.c $(SIM_REDIS) \
    $(SIM_HEADERS) tests/lua/scripts.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 -D_GNU_SOURCE -Wall -Wextra -O1 -g $(CPPFLAGS) \
	    $(HIREDIS_CFLAGS) $(SIM_LUA_CFLAGS) tests/sim/model.c \
	    tests/sim/model_driver.c $(SIM_REDIS) $(LDFLAGS) $(HIREDIS_LIBS) \
	    $(SIM_LUA_LIBS) -o $@

lua-versions: $(LUA_VERSIONS:%=$B/sim-model-%) $B/sim-clock.so ## the scripts in Lua 5.1, LuaJIT and 5.4 (needs their -dev packages)
	@sh tests/lua-versions.sh $B $(LUA_VERSIONS)

$B/sim-clock.so: tests/sim/model_clock.c
	@mkdir -p $B
	$(CC) -O1 -shared -fPIC $< -o $@

mutations: ## break the header in small ways, show the check that notices each (hours); MUTATIONS="1 2" for some
	@sh tests/sim/mutations.sh $(MUTATIONS)

$B/sim-hiredis.a: Makefile
	@mkdir -p $B
	objcopy $(patsubst %,--redefine-sym %,$(foreach f,malloc calloc realloc \
	    strdup free,$f=library_$f)) $(SIM_HIREDIS) $@

$B/sim-ubsan: SIM_FLAGS += -fsanitize=undefined,bounds \
    -fno-sanitize-recover=undefined,bounds
$B/sim $B/sim-ubsan: $(SIM_SOURCES) $(SIM_HEADERS) delayq.h $B/sim-hiredis.a
	@mkdir -p $B
	$(CC) $(SIM_FLAGS) $(CPPFLAGS) $(HIREDIS_CFLAGS) $(SIM_LUA_CFLAGS) \
	    $(SIM_SOURCES) $(SIM_COUNTED_LIBS) -o $@

$B/sim-old-0.%: $(SIM_SOURCES) $(SIM_HEADERS) $B/old/0.%/delayq.h \
              $B/sim-hiredis.a
	@mkdir -p $B
	$(CC) $(SIM_FLAGS) -I$B -DSIM_API=$* $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(SIM_LUA_CFLAGS) $(SIM_SOURCES) $(SIM_COUNTED_LIBS) -o $@

# Processes of three versions; today's are built with sanitizers. RIG_HEADER is
# another header instead of today's, e.g. a broken one.
RIG_HEADER ?= delayq.h
RIG := $(patsubst %,$B/rig/%,worker-0.1 worker-0.2 worker-today proxy leash \
    settime.so)
RIG_FLAGS = -std=gnu99 -O1 -g -I. $(CPPFLAGS) $(HIREDIS_CFLAGS)
rig: $(RIG) $B/delayq ## processes of three versions, with many faults at once, for SECONDS (120); SEED= repeats a plan
	@$(if $(TOOL_TLS),touch,rm -f) $B/rig/tls
	@PYTHONDONTWRITEBYTECODE=1 python3 tests/rig/rig.py \
	    --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

rig-test: $B/sim ## test the judge of the rig, on histories with faults and on those of the simulator
	@PYTHONDONTWRITEBYTECODE=1 python3 tests/rig/judge_test.py
	@PYTHONDONTWRITEBYTECODE=1 sh tests/rig/sim.sh $B/sim $(if \
	    $(filter command%,$(origin SEEDS)),$(SEEDS),60)

$B/rig/worker-today: tests/rig/worker.c tests/preload/settime.c $(RIG_HEADER) \
    $B/tool-tls
	@mkdir -p $(@D)
	$(CC) $(RIG_FLAGS) $(WARN) $(SAN) $(if $(TOOL_TLS),-DDELAYQ_TLS) \
	    -DRIG_HEADER='"$(RIG_HEADER)"' -DRIG_VERSION=3 -DRIG_NAME='"today"' \
	    $< $(TOOL_LIBS) -o $@

$B/rig/worker-0.%: tests/rig/worker.c tests/preload/settime.c $(OLD_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(RIG_FLAGS) -w -DRIG_HEADER='"$B/old/0.$*/delayq.h"' \
	    -DRIG_VERSION=$* -DRIG_NAME='"0.$*"' $< $(LDFLAGS) $(HIREDIS_LIBS) \
	    -o $@

$B/rig/%.so: tests/preload/%.c
	@mkdir -p $(@D)
	$(CC) -O1 -shared -fPIC $< -o $@

$B/rig/%: tests/rig/%.c
	@mkdir -p $(@D)
	$(CC) -std=gnu99 $(WARN) $(CFLAGS) $(CPPFLAGS) $< $(LDFLAGS) -o $@

soak: $B/soak ## C and Java, killed again and again, for SECONDS (120) with each Redisson
	sh tests/interop/soak.sh $B $(SECONDS) $(VERSIONS)

$B/soak: tests/interop/soak.c delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) -o $@

# In the order of tests/bench/README.md; about 8 minutes in all.
BENCHED := rates batch growth stall lateness lone idle waiters tickets aof \
    memory large handles lifecycle counters fleet frame cluster
bench: $(BENCHES:%=$B/%) ## rates, growth, lateness, memory, stalls ..., with a reference
	@sh tests/bench/run.sh $B $(BENCHED)

CHARTED := batch growth lateness
charts: ## the benches' charts, tests/bench/charts/*.svg (needs gnuplot)
	@command -v gnuplot >/dev/null || \
	    { echo "gnuplot is not installed: no charts" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(CHARTED:%=$B/%)
	@mkdir -p $B/charts tests/bench/charts
	@DELAYQ_BENCH_DATA=$B/charts sh tests/with-server.sh sh -c \
	    "$(patsubst %,$B/% &&,$(CHARTED)) :"
	@gnuplot -e "data='$B/charts'; out='tests/bench/charts'" \
	    tests/bench/charts.gp

operate: $B/delayq-asan ## examples/server: configuration, users, units, a compose file, alerts
	@sh tests/server.sh $B/delayq-asan
	@sh tests/monitor.sh $B/delayq-asan

dashboard: $B/delayq ## draw examples/server/dashboard.svg (4 minutes; needs Prometheus, gnuplot)
	@sh tests/monitor.sh $B/delayq picture

recipes: examples $B/line ## the recipes of the documentation, built and run
	@CC='$(CC)' HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' \
	    HIREDIS_LIBS='$(HIREDIS_LIBS)' sh tests/recipes.sh $B $(ONLY)

cli: $B/delayq-asan ## the tests of the command-line tool
	@sh tests/cli.sh $B/delayq-asan
	@sh tests/cli_work.sh $B/delayq-asan

completion: $B/delayq ## write the tool's completion for bash and zsh
	@for shell in bash zsh; do $B/delayq completion $$shell \
	    >examples/tool/completion.$$shell || exit 1; done

$B/line $B/o0/line: tests/recipes/line.c
	@mkdir -p $(@D)
	$(CC) -std=gnu99 $(WARN) $(CFLAGS) $(CPPFLAGS) $< $(LDFLAGS) -o $@

# the tool: with TLS where hiredis has it
TOOL_TLS := $(shell printf '\043include <%s>\n' hiredis/hiredis_ssl.h \
    openssl/ssl.h | $(CC) $(CPPFLAGS) $(HIREDIS_CFLAGS) -E - >/dev/null 2>&1 \
    && echo yes)
TOOL_CFLAGS = -std=c99 $(WARN) $(CPPFLAGS) $(HIREDIS_CFLAGS) -I. \
              $(if $(TOOL_TLS),-DDELAYQ_TLS)
TOOL_LIBS = $(LDFLAGS) $(if $(TOOL_TLS),-lhiredis_ssl) $(HIREDIS_LIBS) \
            $(if $(TOOL_TLS),-lssl -lcrypto)

# changes when hiredis or OpenSSL come or go: then the tool is built anew
always:
$B/tool-tls: always
	@mkdir -p $(@D)
	@echo '$(TOOL_TLS)' | cmp -s - $@ || echo '$(TOOL_TLS)' >$@

$B/delayq: $(TOOL) examples/tool/tool.h delayq.h $B/tool-tls
	@mkdir -p $B
	$(CC) $(TOOL_CFLAGS) $(CFLAGS) $(TOOL) $(TOOL_LIBS) -o $@

$B/delayq-asan: $(TOOL) examples/tool/tool.h delayq.h $B/tool-tls
	@mkdir -p $B
	$(CC) $(TOOL_CFLAGS) $(SAN) -O0 -g1 $(TOOL) $(TOOL_LIBS) -o $@

# The tests, an object for each file. Without optimization ASan's take half as
# long to compile and need the same time to run; test-plain has the warnings of
# the optimizer. The old headers are as they were: nothing is checked in them.
ASAN_OBJECTS := $(TESTS:tests/%.c=$B/asan/%.o)
PLAIN_OBJECTS := $(TESTS:tests/%.c=$B/plain/%.o)
$B/asan/%.o: TEST_FLAGS = $(WARN) $(SAN) -O0 -g1
$B/plain/%.o: TEST_FLAGS = $(WARN) -O1 -g
$B/asan/old/%.o: TEST_FLAGS = -w -O0 -g1 -I$B
$B/plain/old/%.o: TEST_FLAGS = -w -O1 -g -I$B
$(filter $B/asan/old/% $B/plain/old/%,$(ASAN_OBJECTS) $(PLAIN_OBJECTS)): \
    $(OLD_HEADERS)

$B/test-asan: $(ASAN_OBJECTS)
	$(CC) $(SAN) $^ $(LDFLAGS) $(HIREDIS_LIBS) -lpthread -o $@

$B/test-plain: $(PLAIN_OBJECTS)
	$(CC) $^ $(LDFLAGS) $(HIREDIS_LIBS) -lpthread -o $@

# two rules: make takes the targets of one pattern rule to be made at once
COMPILE_TEST = @mkdir -p $(@D) && \
    $(CC) -std=gnu99 $(TEST_FLAGS) -MMD -MP $(CPPFLAGS) $(HIREDIS_CFLAGS) \
    -c $< -o $@
$B/asan/%.o: tests/%.c
	$(COMPILE_TEST)
$B/plain/%.o: tests/%.c
	$(COMPILE_TEST)

-include $(ASAN_OBJECTS:.o=.d) $(PLAIN_OBJECTS:.o=.d)

$B/test-old-0.1: $(FAULT_TESTS)
$B/test-old-0.2: $(FAULT_TESTS_0_2)
$B/test-old-%: $(OLD_TESTS) $(wildcard tests/*.h) $(OLD_HEADERS)
	@mkdir -p $B
	$(CC) -std=gnu99 -w -O1 -g -Itests -I$B \
	    -DDELAYQ_HEADER='"old/$*/delayq.h"' $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(filter %.c,$^) $(LDFLAGS) $(HIREDIS_LIBS) -lpthread -o $@

# static hiredis: the linker wraps its calls of malloc
$B/test-memory: tests/memory/memory.c tests/main.c tests/test.h \
                 tests/calls.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(SAN) -O0 -g1 $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(WRAPS:%=-Wl,--wrap=%) tests/memory/memory.c tests/main.c \
	    $(LDFLAGS) $(HIREDIS_STATIC) -lpthread -o $@

# without sanitizers: it has functions of libc under their own names, as ASan has
$B/test-nonblock: tests/nonblock/nonblock.c tests/main.c tests/test.h \
                  tests/outbox.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    tests/nonblock/nonblock.c tests/main.c $(LDFLAGS) $(HIREDIS_LIBS) \
	    -ldl -lpthread -o $@

# Those of `make test` read only their corpus: they are not optimized.
COMPILE_FUZZER = @mkdir -p $(@D) && clang -std=gnu99 $(WARN) $(SAN) \
    -fsanitize=fuzzer -g $(CPPFLAGS) $(HIREDIS_CFLAGS) $< $(LDFLAGS) \
    $(HIREDIS_LIBS) -o $@
$B/fuzz-image $B/o0/fuzz-image: tests/fuzz/reply.c
$B/fuzz-%: tests/fuzz/%.c tests/fuzz/fuzz.h delayq.h
	$(COMPILE_FUZZER) -O1
$B/o0/fuzz-%: tests/fuzz/%.c tests/fuzz/fuzz.h delayq.h
	$(COMPILE_FUZZER) -O0
fuzz-programs: $(FUZZERS:$B/%=$B/o0/%)

$B/%: tests/bench/%.c tests/bench/bench.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) -lm \
	    -o $@

calls: $B/calls ## the number of functions that an offer and a take enter
	@sh tests/with-server.sh $B/calls

$B/calls: CFLAGS += -finstrument-functions

OLD ?= HEAD
bench-old: $B/scripts ## each script's cost on the server, compared with OLD=commit
	@sh tests/bench/old.sh $B $(OLD)

bench-peers: $B/peers/peers $B/peers/delayq $B/peers/beanstalkd ## compare with Redisson, BullMQ, asynq, beanstalkd, NATS: cost, rate, lateness (13 minutes)
	@sh tests/bench/peers/run.sh $B

CHAOS := $B/peers/chaos-run $B/peers/chaos-delayq $B/peers/chaos-beanstalkd
bench-chaos: $(CHAOS) ## the same systems during faults: lost, twice, early, recovery (under 15 minutes; RUNS=3 for ranges)
	@sh tests/bench/peers/chaos/run.sh $B

chaos-test: $B/peers/chaos-run ## test the checker of bench-chaos, on records with known faults
	@$B/peers/chaos-run --self-test

$B/peers/chaos-run: tests/bench/peers/chaos/chaos.c \
    tests/bench/peers/chaos/check.h
	@mkdir -p $B/peers
	$(CC) -std=gnu99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) -o $@

$B/peers/chaos-%: tests/bench/peers/chaos/%.c \
    tests/bench/peers/chaos/chaos_peer.h delayq.h
	@mkdir -p $B/peers
	$(CC) -std=gnu99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) \
	    -lpthread -o $@

$B/peers/%: tests/bench/peers/%.c tests/bench/peers/peer.h delayq.h
	@mkdir -p $B/peers
	$(CC) -std=gnu99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) \
	    -lpthread -o $@

$B/interop: tests/interop/interop.c tests/main.c tests/test.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(SAN) -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    tests/interop/interop.c tests/main.c $(LDFLAGS) $(HIREDIS_LIBS) -o $@

faults: $B/test-plain ## the table of faults in tests/README.md, measured anew
	@rm -f $B/fault-rows
	@for t in reported killed kill_9_of gone dies packets comes_twice; do \
	    DELAYQ_TEST_ROWS=$B/fault-rows $B/test-plain $$t >$B/fault-rows.out || \
	    { grep -a -v '^ok ' $B/fault-rows.out; exit 1; }; done
	@sort -u -t'|' -k2,2 $B/fault-rows

size: ## code by program, RAM per handle, stack, heap; and that the library allocates nothing
	@CC='$(CC)' HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' \
	    HIREDIS_LIBS='$(HIREDIS_LIBS)' HIREDIS_STATIC='$(HIREDIS_STATIC)' \
	    sh tests/size.sh

matrix: ## other systems and machines (needs root, debootstrap; ROWS=... for some)
	@sh tests/matrix.sh $(ROWS)

windows: ## built for Windows by MinGW-w64; a smoke test and a game run by wine
	@CC='$(CC)' HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' \
	    HIREDIS_LIBS='$(HIREDIS_LIBS)' sh tests/cross.sh windows

zig: ## built for macOS, FreeBSD, NetBSD and OpenBSD by zig cc
	@sh tests/cross.sh zig

device: ## for a Cortex-M4 with newlib and lwIP; a smoke test runs here, on lwIP
	@CC='$(CC)' sh tests/cross.sh device

lwip: ## most tests of tests/ on lwIP, connected with this system by libslirp
	@CC='$(CC)' HIREDIS_LIBS='$(HIREDIS_LIBS)' sh tests/cross.sh lwip

board: ## on an emulated board with a Cortex-M4, Ethernet and lwIP (needs qemu-system-arm)
	@CC='$(CC)' sh tests/cross.sh board

libvalkey: ## the tests with libvalkey instead of hiredis (downloads it)
	@CC='$(CC)' CXX='$(CXX)' sh tests/libvalkey.sh

servers: $B/test-plain ## the tests on other servers: SERVERS="PROGRAM..."
	@sh tests/servers.sh $B/test-plain $(SERVERS)

hosted: $B/test-plain ## the core of the tests as on rented servers; PROFILES="..." for some of them
	@sh tests/hosted/run.sh $B/test-plain $(PROFILES)

tls: ## the tests of rediss:// (needs hiredis >= 1.0 with TLS)
	@echo '#include <hiredis/hiredis_ssl.h>' | $(CC) $(HIREDIS_CFLAGS) -E - \
	    >/dev/null 2>&1 || { echo "hiredis has no TLS here: it needs" \
	    "hiredis >= 1.0 with hiredis_ssl.h, as in Debian 13" >&2; exit 1; }
	@$(MAKE) --no-print-directory $B/test-tls
	$B/test-tls $(ONLY)

$B/test-tls: tests/tls/tls.c tests/main.c tests/test.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(SAN) -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    tests/tls/tls.c tests/main.c $(LDFLAGS) -lhiredis_ssl \
	    $(HIREDIS_LIBS) -lssl -lcrypto -o $@

format: ## format the sources with clang-format
	clang-format -i delayq.h tests/*.[ch] tests/*/*.[ch] \
	    tests/bench/peers/*.[ch] tests/bench/peers/chaos/*.[ch] \
	    tests/device/*/*.[ch] \
	    examples/*.c examples/*/*.[ch]

# $(call fill,FILE): a template of .package/ with prefix and version filled in
fill = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' .package/$1
ROOT = $(DESTDIR)$(PREFIX)
INCLUDE = $(ROOT)/include
PKGCONFIG = $(ROOT)/share/pkgconfig
CMAKE = $(ROOT)/share/cmake/delayq
BIN = $(ROOT)/bin
MAN = $(ROOT)/share/man/man1
BASH = $(ROOT)/share/bash-completion/completions
ZSH = $(ROOT)/share/zsh/site-functions
STRIP ?= -s # `make install STRIP=` keeps the tool's symbols

install: $B/delayq ## header, tool, manual, completion; for pkg-config, CMake
	install -d "$(INCLUDE)" "$(PKGCONFIG)" "$(CMAKE)" "$(BIN)" "$(MAN)" \
	    "$(BASH)" "$(ZSH)"
	install -m 644 delayq.h "$(INCLUDE)"
	install $(STRIP) -m 755 $B/delayq "$(BIN)"
	install -m 644 examples/tool/delayq.1 "$(MAN)"
	install -m 644 examples/tool/completion.bash "$(BASH)/delayq"
	install -m 644 examples/tool/completion.zsh "$(ZSH)/_delayq"
	$(call fill,delayq.pc.in) >"$(PKGCONFIG)/delayq.pc"
	$(call fill,delayq-config-version.cmake.in) \
	    >"$(CMAKE)/delayq-config-version.cmake"
	install -m 644 .package/delayq-config.cmake "$(CMAKE)"
	chmod 644 "$(PKGCONFIG)/delayq.pc" "$(CMAKE)/delayq-config-version.cmake"

deb: ## Debian packages of the header and of the tool, build/deb/*.deb
	@sh .package/deb.sh $B

deb-test: ## these, installed in a bare Debian 12 and 13 (needs root, debootstrap)
	@sh tests/deb.sh $(SUITES)

uninstall: ## remove the installed files
	rm -f "$(INCLUDE)/delayq.h" "$(PKGCONFIG)/delayq.pc"
	rm -f "$(BIN)/delayq" "$(MAN)/delayq.1" "$(BASH)/delayq" "$(ZSH)/_delayq"
	rm -rf "$(CMAKE)"

clean: ## remove build/
	rm -rf $B

help: ## list the targets
	@sed -n 's/^\([a-z -]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

.PHONY: all examples demo test check test-all quick nightly stress bare asan valgrind \
        memory nonblock old sim cost sim-ubsan sim-old sim-test mutations fuzz lint lua lua-versions \
        interop soak rig rig-test bench bench-old bench-peers bench-chaos chaos-test calls charts cli recipes \
        faults size marks proof models matrix windows zig device lwip board servers hosted libvalkey tls \
        format install uninstall deb deb-test operate dashboard completion clean help
