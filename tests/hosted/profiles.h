/*
 * The commands that are refused by hosted servers, and by other servers with
 * Redis' protocol. Each entry is a provider in one version and configuration,
 * or several providers that refuse the same commands. The proxy in hosted.c
 * refuses these commands, and passes others on to a real Redis. Each entry
 * names its sources. "Assumed" means that no public source quotes the text.
 *
 *     core        1: `make hosted` runs the core of the tests on it
 *     refused     commands and their errors; without an error the connection
 *                 is closed
 *     in_scripts  the same for commands that a script calls
 *     no_keys     the error of a script that declares no key
 *     undeclared  the error of a script that uses a key and doesn't declare it
 *     most_args   the maximum number of words in a request
 *     too_many    the error of a request with more words
 *     forgets     every n-th EVALSHA finds that the script is lost
 *     lua54       format('%d') refuses a number that is not an integer
 *     whole_ms    in a script TIME returns whole milliseconds
 *     major       the server's version for the tests, if it is not that of the
 *                 real server
 *     server      arguments of the real server
 *     advice      the library's error must contain this. The operator must
 *                 change it before anything works
 */
#ifndef PROFILES_H
#define PROFILES_H

struct refusal {
    const char *command, *error;
};

struct profile {
    const char *name, *provider;
    int core;
    struct refusal refused[8], in_scripts[16];
    const char *no_keys, *undeclared, *too_many;
    int most_args, forgets, lua54, whole_ms, major;
    const char *server[5];
    const char *advice;
};

/* clang-format off */
static const struct profile profiles[] = {

/* According to redis.io (Redis Software, compatibility, client-side caching)
 * CLIENT TRACKING has no REDIRECT. Source of the text:
 * github.com/bezzad/HybridRedisCache/issues/16 */
{.name = "redis-cloud", .core = 1,
 .provider = "Redis Cloud, Redis Software, Azure Managed Redis",
 .refused = {{"CLIENT TRACKING",
              "ERR command 'client|tracking' is not allowed"},
             {"CONFIG", "ERR command is not allowed"}}},

/* Sources: github.com/redis/rueidis/issues/612 and, for CONFIG,
 * phpredis/issues/609 */
{.name = "elasticache", .core = 1,
 .provider = "ElastiCache 7.1, node-based",
 .refused = {{"CLIENT TRACKING",
              "ERR unknown subcommand 'tracking'. Try CLIENT HELP."},
             {"CLIENT CACHING",
              "ERR unknown subcommand 'caching'. Try CLIENT HELP."},
             {"CONFIG", "ERR unknown command 'CONFIG'"}}},

/* Sources: docs.aws.amazon.com, SupportedCommands and
 * BestPractices.Clients.Redis.LuaScripts. Undeclared keys:
 * github.com/Bogdanp/dramatiq/issues/754. Lost scripts:
 * Effect-TS/effect-smol/issues/2328. Form of the texts:
 * spring-projects/spring-data-redis/issues/2815. Other texts are assumed. */
{.name = "elasticache-serverless", .core = 1,
 .provider = "ElastiCache Serverless",
 .refused = {{"CLIENT TRACKING",
              "ERR unknown subcommand 'tracking'. Try CLIENT HELP."},
             {"CLIENT CACHING",
              "ERR unknown subcommand 'caching'. Try CLIENT HELP."},
             {"CLIENT ID", "ERR unknown subcommand 'id'. Try CLIENT HELP."},
             {"PSUBSCRIBE",
              "ERR unknown command 'psubscribe', with args beginning with: "},
             {"CONFIG",
              "ERR unknown command 'config', with args beginning with: "}},
 .undeclared = "ERR Script attempted to access an undeclared key",
 .most_args = 3999, .too_many = "ERR too many arguments", .forgets = 5,
 .server = {"--maxmemory-policy", "volatile-lru"}},

/* According to docs.cloud.google.com/memorystore all of delayq's commands are
 * supported. */
{.name = "memorystore", .core = 1,
 .provider = "Memorystore for Valkey",
 .refused = {{"CONFIG", "NOPERM this user has no permissions to run the "
              "'config|get' command"}},
 .server = {"--maxmemory-policy", "volatile-lru"}},

/* It refuses all CLIENT commands. Sources:
 * github.com/OptimalBits/bull/pull/1210, patrikx3/redis-ui/issues/31 */
{.name = "memorystore-redis", .core = 1,
 .provider = "Memorystore for Redis",
 .refused = {{"CLIENT", "ERR unknown command `client`, with args beginning "
              "with: "},
             {"CONFIG", "ERR unknown command `config`, with args beginning "
              "with: "}},
 .server = {"--maxmemory-policy", "volatile-lru"}},

/* intl.cloud.tencent.com/document/product/239/77219 says that client-side
 * caching is "currently not supported". The text is assumed. */
{.name = "tencent", .core = 1,
 .provider = "Tencent Cloud",
 .refused = {{"CLIENT TRACKING", "ERR unsupported command 'client tracking'"},
             {"CLIENT CACHING", "ERR unsupported command 'client caching'"},
             {"CONFIG", "ERR unsupported command 'config'"}}},

/* In upstash.com/docs/redis, the page commands/connection/overview lists
 * neither command. According to the page features/eviction, the server evicts
 * no key unless eviction is enabled. The text is assumed. */
{.name = "upstash", .core = 1,
 .provider = "Upstash",
 .refused = {{"CLIENT TRACKING", "ERR Command is not available: 'CLIENT "
              "TRACKING'"},
             {"CLIENT CACHING", "ERR Command is not available: 'CLIENT "
              "CACHING'"}}},

/* The source for CLIENT ID is help.aliyun.com/document_detail/145968.html, for
 * scripts without keys 92942.html in the same folder, and for PUBLISH and
 * PUBSUB in scripts developer.aliyun.com/ask/636094. It is assumed that
 * tracking is refused. The texts of CLIENT commands and of commands in scripts
 * are assumed, too. */
{.name = "alibaba", .core = 1,
 .provider = "Alibaba Tair, cluster, proxy, script_check_enable 0",
 .refused = {{"CLIENT TRACKING", "ERR unknown subcommand 'tracking'"},
             {"CLIENT CACHING", "ERR unknown subcommand 'caching'"},
             {"CLIENT ID", "ERR unknown subcommand 'id'"}},
 .in_scripts = {{"PUBLISH",
                 "ERR This Redis command is not allowed from scripts"},
                {"PUBSUB",
                 "ERR This Redis command is not allowed from scripts"}},
 .no_keys = "ERR for redis cluster, eval/evalsha number of keys can't be "
            "negative or zero"},

/* Sources: help.aliyun.com/document_detail/92942.html,
 * redisson/redisson/issues/4221 */
{.name = "alibaba-checked",
 .provider = "Alibaba Tair, cluster, proxy, as delivered",
 .refused = {{"SCRIPT LOAD", "ERR bad lua script for redis cluster, all the "
              "keys that the script uses should be passed using the KEYS "
              "array, and KEYS should not be in expression"}},
 .no_keys = "ERR for redis cluster, eval/evalsha number of keys can't be "
            "negative or zero",
 .advice = "script_check_enable"},

/* Source: Dragonfly's commit f8eca6d0b, src/server/server_family.cc
 * (ClientTracking), facade/error.h and main_service.cc (CheckKeysDeclared),
 * generic_family.cc (Time). Dragonfly turns a float that a script returns into
 * a string; this profile does not. */
{.name = "dragonfly", .core = 1,
 .provider = "Dragonfly",
 .refused = {{"CLIENT TRACKING", "ERR Client tracking is currently not "
              "supported for RESP2. Please use RESP3."},
             {"CLIENT CACHING", "ERR Client caching is currently not "
              "supported for RESP2. Please use RESP3."}},
 .undeclared = "script tried accessing undeclared key",
 .lua54 = 1, .whole_ms = 1},

/* A server that was started with --lua. Source: Garnet's commit e508a4162,
 * libs/server/Resp/CmdStrings.cs, Parser/RespCommand.cs,
 * website/docs/commands/api-compatibility.md */
{.name = "garnet", .core = 1,
 .provider = "Garnet, --lua",
 .refused = {{"CLIENT TRACKING", "ERR unknown subcommand 'TRACKING'."},
             {"CLIENT CACHING", "ERR unknown subcommand 'CACHING'."}},
 .in_scripts = {{"XADD", "ERR Unknown Redis command called from script"},
                {"XRANGE", "ERR Unknown Redis command called from script"},
                {"XREVRANGE", "ERR Unknown Redis command called from script"},
                {"XLEN", "ERR Unknown Redis command called from script"}},
 .lua54 = 1},

/* The source is that of "garnet", see RESP_ERR_LUA_DISABLED. */
{.name = "garnet-without-lua",
 .provider = "Garnet, as delivered",
 .refused = {{"EVAL", "ERR This instance has Lua scripting support disabled"},
             {"EVALSHA",
              "ERR This instance has Lua scripting support disabled"},
             {"SCRIPT",
              "ERR This instance has Lua scripting support disabled"}},
 .advice = "--lua"},

/* Source: Kvrocks' commit 5fccd57c, src/commands/cmd_server.cc, cmd_pubsub.cc,
 * storage/scripting.cc */
{.name = "kvrocks", .core = 1,
 .provider = "Kvrocks",
 .refused = {{"CLIENT TRACKING", "ERR Syntax error, try CLIENT LIST|INFO|KILL "
              "ip:port|GETNAME|SETNAME"},
             {"CLIENT CACHING", "ERR Syntax error, try CLIENT LIST|INFO|KILL "
              "ip:port|GETNAME|SETNAME"}},
 .in_scripts = {{"PUBSUB", "This Redis command is not allowed from scripts"}}},

/* Source: docs.oracle.com, OCI Cache, restricted commands. The texts are those
 * of Redis. */
{.name = "oci-sharded",
 .provider = "OCI Cache, sharded",
 .refused = {{"EVAL", "ERR unknown command 'EVAL', with args beginning with: "},
             {"EVALSHA",
              "ERR unknown command 'EVALSHA', with args beginning with: "},
             {"SCRIPT",
              "ERR unknown command 'SCRIPT', with args beginning with: "}},
 .advice = "scripts"},

/* The texts are those of Redis 5.0.14. `make servers` runs the tests on a real
 * Redis 5. */
{.name = "redis-5", .core = 1,
 .provider = "Redis 5",
 .refused = {{"CLIENT TRACKING", "ERR Unknown subcommand or wrong number of "
              "arguments for 'TRACKING'. Try CLIENT HELP."},
             {"CLIENT CACHING", "ERR Unknown subcommand or wrong number of "
              "arguments for 'CACHING'. Try CLIENT HELP."},
             {"HELLO", "ERR unknown command `HELLO`, with args beginning with: "
              "`2`, "},
             {"ACL", "ERR unknown command `ACL`, with args beginning with: "}},
 .in_scripts = {{"LMOVE", "Unknown Redis command called from Lua script"},
                {"LPOS", "Unknown Redis command called from Lua script"},
                {"LMPOP", "Unknown Redis command called from Lua script"},
                {"ZMPOP", "Unknown Redis command called from Lua script"},
                {"ZMSCORE", "Unknown Redis command called from Lua script"},
                {"ZRANGESTORE", "Unknown Redis command called from Lua script"},
                {"COPY", "Unknown Redis command called from Lua script"},
                {"GETEX", "Unknown Redis command called from Lua script"},
                {"GETDEL", "Unknown Redis command called from Lua script"},
                {"PEXPIRETIME",
                 "Unknown Redis command called from Lua script"}},
 .major = 5, .server = {"--enable-debug-command", "yes"}},

/* A proxy that closes the connection after an unknown command. */
{.name = "closing-proxy",
 .provider = "a proxy that closes at CLIENT TRACKING",
 .refused = {{"CLIENT TRACKING", NULL}}},

/* This profile refuses nothing. The others are compared with it. */
{.name = "redis", .provider = "Redis, Valkey, KeyDB"}};
/* clang-format on */

#define PROFILES ((int)(sizeof profiles / sizeof *profiles))

#endif
