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
EXAMPLES := $(filter-out tool/% device/%,$(patsubst examples/%.c,%,\
    $(wildcard examples/*.c examples/*/*.c))) delayq
TOOL := $(wildcard examples/tool/*.c)
TESTS := $(wildcard tests/*.c)
PEERS := peers delayq beanstalkd
BENCHES := $(patsubst tests/bench/%.c,%,$(wildcard tests/bench/*.c))
FUZZERS := $B/fuzz-url $B/fuzz-element $B/fuzz-reply
FUZZ_SECONDS ?= 30
HIREDIS_STATIC ?= -l:libhiredis.a
WRAPS := malloc calloc realloc strdup hi_malloc hi_strdup sdsempty \
         redisBufferWrite redisReaderFeed

all: examples ## build the examples (default)

examples: $(EXAMPLES:%=$B/%) ## build the examples into build/

$B/%: examples/%.c delayq.h
	@mkdir -p $(@D)
	$(CC) -std=c99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) -o $@

demo: $B/demo $B/game_loop $B/line ## items arrive; a game runs on while the server is frozen
	@sh tests/with-server.sh sh -c '$B/demo && sh tests/frozen.sh $B'

test check: ## the tests under sanitizers, the examples, the tool, hygiene
	@echo "== building"
	@$(MAKE) --no-print-directory -s -j2 $B/test-asan $B/test-nonblock \
	    $B/delayq-asan $B/line examples
	@CC='$(CC)' CXX='$(CXX)' sh tests/all.sh $B test

test-all: ## also valgrind, a UTF-8 server, failing allocations, make install
	@echo "== building"
	@$(MAKE) --no-print-directory -s -j2 $B/test-asan $B/test-plain \
	    $B/test-nonblock $B/delayq-asan $B/line examples
	@CC='$(CC)' CXX='$(CXX)' sh tests/all.sh $B all

quick: $B/test-plain ## the tests once, without sanitizers: under a minute
	@DELAYQ_TEST_PROGRESS=1 $B/test-plain $(ONLY) >$B/quick.out; code=$$?; \
	    LC_ALL=C grep -a -v '^ok ' $B/quick.out; exit $$code

bare: ## README's commands in a bare Debian 12 and 13 (needs root, debootstrap)
	@sh tests/bare.sh $(SUITES)

# the libraries of old versions, beside which today's is tested
TESTS += tests/old/peer_0_1.c tests/old/peer_0_2.c
OLD_HEADERS := tests/old/0.1/delayq.h tests/old/0.2/delayq.h

# tests of faults that 0.1 had, which compile with its header, too
FAULT_TESTS := tests/addresses.c tests/elements.c tests/hearing.c \
               tests/hostile.c tests/large.c tests/loops.c \
               tests/mixed.c tests/neighbours.c tests/refusals.c \
               tests/statuses.c tests/waiters.c
OLD_TESTS = $(FAULT_TESTS) tests/main.c tests/proxy.c tests/old/library.c \
            tests/old/peer_0_1.c tests/old/peer_0_2.c
old: $B/test-old ## the faults of tests/README.md, each shown on the header of 0.1
	@sh tests/old.sh $B/test-old

asan: $B/test-asan ## the tests under ASan and UBSan
	$B/test-asan $(ONLY)

valgrind: $B/test-plain ## the tests under valgrind
	sh tests/valgrind.sh $B/test-plain $(ONLY)

memory: $B/test-memory ## make each of hiredis' allocations fail once
	$B/test-memory $(ONLY)

nonblock: $B/test-nonblock ## with an outbox no call of a frame waits
	$B/test-nonblock $(ONLY)

fuzz: ## fuzz URLs, elements and replies, each for FUZZ_SECONDS (30)
	@mkdir -p $B
	@if echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	    clang -fsanitize=fuzzer -x c - -o $B/fuzzer >/dev/null 2>&1; \
	    then $(MAKE) --no-print-directory $(FUZZERS); fi
	@sh tests/fuzz/run.sh $(FUZZ_SECONDS) $B

lint: ## compilers, standards, names, the documentation's examples and links
	sh tests/hygiene.sh
	sh tests/docs.sh
	sh tests/lua.sh check $B

lua: ## the scripts as build/lua/NAME.lua, and their SHA1s in delayq.h
	@CC='$(CC)' HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' sh tests/lua.sh write $B

interop: $B/interop $B/redisson/example ## together with real Redisson (needs a JDK and Maven)
	sh tests/interop/run.sh $B/interop

SECONDS ?= 120
# SECONDS of soak is another default: `make sim SECONDS=60`
SEEDS ?= 1000
SIM_LUA_CFLAGS ?= -I/usr/include/lua5.1
SIM_LUA_LIBS ?= -l:liblua5.1.a -lm -ldl
SIM := world net sys redis redis_cmd redis_data redis_lua redis_reply \
       library actors check scenario service main
SIM_FLAGS = -std=gnu99 -D_GNU_SOURCE -O2 -g -Wall -Wextra
SIM_SOURCES = $(SIM:%=tests/sim/%.c)
SIM_HEADERS = $(wildcard tests/sim/*.h) tests/sim/wrap.txt
SIM_LIBS = @tests/sim/wrap.txt $(LDFLAGS) $(HIREDIS_STATIC) $(SIM_LUA_LIBS)
# what of it was given on the command line
SIM_ARGS = $(if $(filter command%,$(origin SEEDS)),--seeds $(SEEDS)) \
    $(if $(filter command%,$(origin SECONDS)),--seconds $(SECONDS)) \
    $(if $(filter command%,$(origin SEEDS) $(origin SECONDS)),,--seeds $(SEEDS)) \
    $(if $(FIRST),--first $(FIRST))

sim: $B/sim ## thousands of hours of faults, simulated; SEEDS=, SECONDS=, or SEED= for one with its story
	@$(if $(SEED),$B/sim --seed $(SEED) $(if $(DROP),--drop $(DROP)), \
	    $B/sim --known tests/sim/seeds.txt $(SIM_ARGS))

sim-old: $B/sim-old ## the same with the header of 0.1: the faults that it had
	@$(if $(SEED),$B/sim-old --seed $(SEED) $(if $(DROP),--drop $(DROP)), \
	    sh tests/sim/old.sh $B/sim-old)

SIM_PROGRAMS = $B/sim-world-test $B/sim-kernel-test $B/sim-model $B/sim-clock.so
sim-programs: $(SIM_PROGRAMS)
sim-test: $(SIM_PROGRAMS) ## the simulator itself: its world; its model beside a redis-server
	@$B/sim-world-test
	@$B/sim-kernel-test
	@env -u SECONDS $B/sim-model $B/sim-clock.so

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
$B/sim-model: tests/sim/model.c tests/sim/model_driver.c $(SIM_REDIS) \
    $(SIM_HEADERS) delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 -Wall -Wextra -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(SIM_LUA_CFLAGS) tests/sim/model.c tests/sim/model_driver.c \
	    $(SIM_REDIS) $(LDFLAGS) $(HIREDIS_LIBS) $(SIM_LUA_LIBS) -o $@

$B/sim-clock.so: tests/sim/model_clock.c
	@mkdir -p $B
	$(CC) -O1 -shared -fPIC $< -o $@

mutations: ## small breakages of the header: what notices each? (hours); MUTATIONS="1 2" for some
	@sh tests/sim/mutations.sh $(MUTATIONS)

$B/sim: $(SIM_SOURCES) $(SIM_HEADERS) delayq.h
	@mkdir -p $B
	$(CC) $(SIM_FLAGS) $(CPPFLAGS) $(HIREDIS_CFLAGS) $(SIM_LUA_CFLAGS) \
	    $(SIM_SOURCES) $(SIM_LIBS) -o $@

$B/sim-old: $(SIM_SOURCES) $(SIM_HEADERS) tests/old/0.1/delayq.h
	@mkdir -p $B
	$(CC) $(SIM_FLAGS) -DSIM_OLD $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(SIM_LUA_CFLAGS) $(SIM_SOURCES) $(SIM_LIBS) -o $@

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

operate: $B/delayq-asan ## examples/server: configuration, users, units, a compose file
	@sh tests/server.sh $B/delayq-asan

recipes: examples $B/line ## the recipes of the documentation, built and run
	@CC='$(CC)' HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' \
	    HIREDIS_LIBS='$(HIREDIS_LIBS)' sh tests/recipes.sh $B $(ONLY)

cli: $B/delayq-asan ## the tests of the command-line tool
	@sh tests/cli.sh $B/delayq-asan

completion: $B/delayq ## write the tool's completion for bash and zsh
	@for shell in bash zsh; do $B/delayq completion $$shell \
	    >examples/tool/completion.$$shell || exit 1; done

$B/line: tests/recipes/line.c
	@mkdir -p $B
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
	$(CC) $(TOOL_CFLAGS) $(SAN) -O1 -g $(TOOL) $(TOOL_LIBS) -o $@

$B/test-asan: $(TESTS) $(wildcard tests/*.h tests/lua/*.h) delayq.h \
    $(OLD_HEADERS)
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(SAN) -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(TESTS) $(LDFLAGS) $(HIREDIS_LIBS) -lpthread -o $@

$B/test-plain: $(TESTS) $(wildcard tests/*.h tests/lua/*.h) delayq.h \
    $(OLD_HEADERS)
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(TESTS) $(LDFLAGS) $(HIREDIS_LIBS) -lpthread -o $@

$B/test-old: $(OLD_TESTS) $(wildcard tests/*.h) $(OLD_HEADERS)
	@mkdir -p $B
	$(CC) -std=gnu99 -O1 -g -Itests -DDELAYQ_HEADER='"old/0.1/delayq.h"' \
	    $(CPPFLAGS) \
	    $(HIREDIS_CFLAGS) $(OLD_TESTS) $(LDFLAGS) $(HIREDIS_LIBS) \
	    -lpthread -o $@

# static hiredis: the linker wraps its calls of malloc
$B/test-memory: tests/memory/memory.c tests/main.c tests/test.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(SAN) -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    $(WRAPS:%=-Wl,--wrap=%) tests/memory/memory.c tests/main.c \
	    $(LDFLAGS) $(HIREDIS_STATIC) -lpthread -o $@

# without sanitizers: it has functions of libc under their own names, as ASan has
$B/test-nonblock: tests/nonblock/nonblock.c tests/main.c tests/test.h \
                  tests/outbox.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) -O1 -g $(CPPFLAGS) $(HIREDIS_CFLAGS) \
	    tests/nonblock/nonblock.c tests/main.c $(LDFLAGS) $(HIREDIS_LIBS) \
	    -ldl -lpthread -o $@

$B/fuzz-%: tests/fuzz/%.c tests/fuzz/fuzz.h delayq.h
	@mkdir -p $B
	clang -std=gnu99 $(WARN) $(SAN) -fsanitize=fuzzer -O1 -g $(CPPFLAGS) \
	    $(HIREDIS_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) -o $@

$B/%: tests/bench/%.c tests/bench/bench.h delayq.h
	@mkdir -p $B
	$(CC) -std=gnu99 $(WARN) $(ALL_CFLAGS) $< $(LDFLAGS) $(HIREDIS_LIBS) -lm \
	    -o $@

calls: $B/calls ## how many functions an offer and a take enter
	@sh tests/with-server.sh $B/calls

$B/calls: CFLAGS += -finstrument-functions

OLD ?= HEAD
bench-old: $B/scripts ## each script's cost on the server, compared with OLD=commit
	@sh tests/bench/old.sh $B $(OLD)

bench-peers: $(PEERS:%=$B/peers/%) ## compare with Redisson, BullMQ, asynq, beanstalkd (takes 5 minutes)
	@sh tests/bench/peers/run.sh $B

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
	    HIREDIS_LIBS='$(HIREDIS_LIBS)' sh tests/size.sh

matrix: ## other systems and machines (needs root, debootstrap; ROWS=... for some)
	@sh tests/matrix.sh $(ROWS)

windows: ## built for Windows by MinGW-w64; a smoke test and a game run by wine
	@CC='$(CC)' HIREDIS_CFLAGS='$(HIREDIS_CFLAGS)' \
	    HIREDIS_LIBS='$(HIREDIS_LIBS)' sh tests/cross.sh windows

zig: ## built for macOS, FreeBSD, NetBSD and OpenBSD by zig cc
	@sh tests/cross.sh zig

device: ## for a Cortex-M4 with newlib and lwIP; a smoke test runs here, on lwIP
	@CC='$(CC)' sh tests/cross.sh device

servers: $B/test-plain ## the tests on other servers: SERVERS="PROGRAM..."
	@sh tests/servers.sh $B/test-plain $(SERVERS)

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
	    tests/bench/peers/*.[ch] tests/device/linux/*.[ch] \
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

.PHONY: all examples demo test check test-all quick bare asan valgrind \
        memory nonblock old sim sim-old sim-test mutations fuzz lint lua \
        interop soak bench bench-old bench-peers calls charts cli recipes \
        faults size matrix windows zig device servers tls format install uninstall \
        deb deb-test operate completion clean help
