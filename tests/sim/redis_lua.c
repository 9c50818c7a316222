/*
 * The scripts: EVAL, EVALSHA and SCRIPT, and the libraries of a script, such as
 * struct. All servers of the process use one Lua state, one after the other.
 * From one script to the next the state keeps only their compiled code.
 *
 * Redis has Lua 5.1. If this file is built with LuaJIT (Kvrocks) or Lua 5.4
 * (Dragonfly, Garnet), scripts run as in these servers: see redis_impl.h.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <lua.h>
#include <lauxlib.h>
#include <lualib.h>
#include "redis_impl.h"

static lua_State *lua;
static map compiled; /* references of the compiled scripts, by SHA1 */
static map runs;     /* how often each script has run, by SHA1 */
static map digests;  /* SHA1s by the text of the script, to save time */
static call *running;

#if LUA_VERSION_NUM >= 504
#define is_whole lua_isinteger
void lua_imitate(int like) {
    lua_like = like;
}
#else
/* In this version of Lua all numbers are doubles. */
#define is_whole(L, i) 0
void lua_imitate(int like) {
    (void)like;
}
#endif

/* --- errors -------------------------------------------------------------- */

/* Pushes the table of an error. A text without "-CODE " gets the code ERR. */
static void push_error(lua_State *L, const char *text, int counted) {
    const char *space = strchr(text, ' ');
    size_t len = strlen(text);
    while (len > 0 && strchr("\r\n", text[len - 1])) len--;
    lua_createtable(L, 0, 2);
    if (text[0] == '-' && space) {
        lua_pushlstring(L, text + 1, len - 1);
    } else {
        lua_pushliteral(L, "ERR ");
        lua_pushlstring(L, text + (text[0] == '-'), len - (text[0] == '-'));
        lua_concat(L, 2);
    }
    lua_setfield(L, -2, "err");
    if (!counted) return;
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, "ignore_error_stats_update");
}

/* The message handler turns an error into a table and adds the line number. */
static int on_error(lua_State *L) {
    lua_Debug at;
    int known = lua_getstack(L, 1, &at) && lua_getinfo(L, "Sl", &at);
    if (known && strcmp(at.what, "C") == 0)
        known = lua_getstack(L, 2, &at) && lua_getinfo(L, "Sl", &at);
    if (!lua_istable(L, 1)) {
        const char *text = lua_tostring(L, 1);
        lua_createtable(L, 0, 3);
        lua_pushliteral(L, "ERR ");
        if (text)
            lua_pushvalue(L, 1);
        else if (lua_isboolean(L, 1))
            lua_pushstring(L, lua_toboolean(L, 1) ? "true" : "false");
        else
            lua_pushstring(L, luaL_typename(L, 1));
        lua_concat(L, 2);
        lua_setfield(L, -2, "err");
    }
    if (known) {
        lua_pushstring(L, at.source);
        lua_setfield(L, -2, "source");
        lua_pushinteger(L, at.currentline);
        lua_setfield(L, -2, "line");
    }
    return 1;
}

static int on_unknown_global(lua_State *L) {
    return luaL_error(
        L, "Script attempted to access nonexistent global variable '%s'",
        lua_tostring(L, 2) ? lua_tostring(L, 2) : "?");
}

static int on_new_global(lua_State *L) {
    return luaL_error(L, "Attempt to modify a readonly table");
}

/* --- redis.call ---------------------------------------------------------- */

static const char *refused_in_script(const call *k) {
    redis *r = k->r;
    const command *cmd = k->cmd;
    if (cmd->flags & CMD_NOSCRIPT)
        return "This Redis command is not allowed from script";
    if (r->script_stale && !(cmd->flags & CMD_STALE))
        return "Can not execute the command on a stale replica";
    if (k->c && acl_denies(&r->faults, cmd))
        return "The user executing the script can't run this command "
               "or subcommand";
    if (r->read_only_script && cmd->flags & (CMD_WRITE | CMD_MAYREPL))
        return "Write commands are not allowed from read-only scripts.";
    if (cmd->flags & CMD_WRITE && !r->dirty_script && k->c) {
        if (is_replica(k)) return read_only_text;
        if (r->faults.no_persistence) return misconf_text;
    }
    if (!r->dirty_script && r->oom_at_start && cmd->flags & CMD_DENYOOM)
        return oom_text;
    return NULL;
}

/* Write a number as the text of an argument. Garnet formats it as Lua does. */
static size_t number_text(lua_State *L, int i, char out[48]) {
    if (is_whole(L, i))
        return (size_t)snprintf(out, 48, "%lld",
                                (long long)lua_tointeger(L, i));
    if (lua_like == LUA_LIKE_GARNET)
        return (size_t)snprintf(out, 48, "%.14g", lua_tonumber(L, i));
    return double_text(lua_tonumber(L, i), out);
}

static int call_from_lua(lua_State *L, int raise) {
    static const char **argv;
    static size_t *lens;
    static char(*numbers)[48];
    static int room;
    int n = lua_gettop(L), i, container;
    reply to = {L, NULL, 0, 0, {{0, 0}}};
    call k = {running->r, running->c, NULL, n, NULL, NULL, &to, 1, 0, 0};
    const char *refused = NULL;
    if (n == 0) {
        push_error(L,
                   "Please specify at least one argument for this "
                   "redis lib call",
                   0);
        return raise ? lua_error(L) : 1;
    }
    if (n > room) {
        room = 2 * n;
        argv = realloc(argv, (size_t)room * sizeof *argv);
        lens = realloc(lens, (size_t)room * sizeof *lens);
        numbers = realloc(numbers, (size_t)room * sizeof *numbers);
        if (!argv || !lens || !numbers) abort();
    }
    for (i = 0; i < n; i++) {
        int type = lua_type(L, i + 1);
        if (type == LUA_TSTRING) {
            argv[i] = lua_tolstring(L, i + 1, &lens[i]);
        } else if (type == LUA_TNUMBER) {
            lens[i] = number_text(L, i + 1, numbers[i]);
            argv[i] = numbers[i];
        } else {
            push_error(L,
                       "Lua redis lib command arguments must be strings or "
                       "integers",
                       0);
            return raise ? lua_error(L) : 1;
        }
    }
    k.argv = argv;
    k.lens = lens;
    k.r->work++;
    k.r->calls++;
    k.cmd = command_find(n, argv, lens, &container);
    if (!k.cmd || (container && n > 1))
        refused = "Unknown Redis command called from script";
    else if (container ||
             (k.cmd->arity > 0 ? n != k.cmd->arity : n < -k.cmd->arity))
        refused = "Wrong number of args calling Redis command from script";
    else
        refused = refused_in_script(&k);
    if (refused) {
        push_error(L, refused, 1);
        return raise ? lua_error(L) : 1;
    }
    if (k.cmd->flags & CMD_WRITE) k.r->dirty_script = 1;
    call_run(&k);
    if (!to.failed) return 1;
    push_error(L, k.r->error.s, 1);
    return raise ? lua_error(L) : 1;
}

static int redis_call_(lua_State *L) {
    return call_from_lua(L, 1);
}

static int redis_pcall_(lua_State *L) {
    return call_from_lua(L, 0);
}

/* pcall as in Redis: if the error is a table, it returns the table's text. */
static int pcall_(lua_State *L) {
    int n = lua_gettop(L);
    luaL_checkany(L, 1);
    lua_pushboolean(L, 1);
    lua_insert(L, 1);
    if (lua_pcall(L, n - 1, LUA_MULTRET, 0) != 0) {
        lua_remove(L, 1);
        if (lua_istable(L, -1)) {
            lua_getfield(L, -1, "err");
            if (lua_isstring(L, -1)) lua_replace(L, -2);
        }
        lua_pushboolean(L, 0);
        lua_insert(L, 1);
    }
    return lua_gettop(L);
}

static int redis_sha1hex(lua_State *L) {
    char hex[41];
    size_t len;
    const char *s;
    if (lua_gettop(L) != 1) {
        push_error(L, "wrong number of arguments", 0);
        return lua_error(L);
    }
    s = lua_tolstring(L, 1, &len);
    sha1_hex(s ? s : "", s ? len : 0, hex);
    lua_pushlstring(L, hex, 40);
    return 1;
}

static int one_string(lua_State *L) {
    if (lua_gettop(L) == 1 && lua_type(L, 1) == LUA_TSTRING) return 1;
    push_error(L, "wrong number or type of arguments", 0);
    return 0;
}

static int redis_error_reply(lua_State *L) {
    if (!one_string(L)) return 1;
    if (lua_tostring(L, 1)[0] != '-') {
        lua_pushliteral(L, "-");
        lua_insert(L, 1);
        lua_concat(L, 2);
    }
    push_error(L, lua_tostring(L, -1), 0);
    return 1;
}

static int redis_status_reply(lua_State *L) {
    if (!one_string(L)) return 1;
    lua_createtable(L, 0, 1);
    lua_pushvalue(L, 1);
    lua_setfield(L, -2, "ok");
    return 1;
}

static int redis_nothing(lua_State *L) {
    (void)L;
    return 0;
}

static int redis_true(lua_State *L) {
    lua_pushboolean(L, 1);
    return 1;
}

/* --- struct -------------------------------------------------------------- */

typedef struct layout {
    int little;
    size_t align;
} layout;

static size_t digits(lua_State *L, const char **f, size_t missing) {
    size_t n = 0;
    if (!isdigit((unsigned char)**f)) return missing;
    while (isdigit((unsigned char)**f)) {
        if (n > INT32_MAX / 10 - 10) luaL_error(L, "integral size overflow");
        n = n * 10 + (size_t)(*(*f)++ - '0');
    }
    return n;
}

static size_t option_size(lua_State *L, int option, const char **f) {
    size_t n;
    switch (option) {
    case 'b':
    case 'B':
    case 'x': return 1;
    case 'h':
    case 'H': return sizeof(short);
    case 'l':
    case 'L': return sizeof(long);
    case 'T': return sizeof(size_t);
    case 'f': return sizeof(float);
    case 'd': return sizeof(double);
    case 'c': return digits(L, f, 1);
    case 'i':
    case 'I':
        n = digits(L, f, sizeof(int));
        if (n > 32)
            luaL_error(L, "integral size %d is larger than limit of %d", (int)n,
                       32);
        return n;
    default: return 0;
    }
}

static size_t padding(size_t at, const layout *l, int option, size_t size) {
    if (size == 0 || option == 'c') return 0;
    if (size > l->align) size = l->align;
    return (size - (at & (size - 1))) & (size - 1);
}

static void control(lua_State *L, int option, const char **f, layout *l) {
    switch (option) {
    case ' ': return;
    case '>': l->little = 0; return;
    case '<': l->little = 1; return;
    case '!':
        l->align = digits(L, f, 8);
        if (l->align == 0 || (l->align & (l->align - 1)) != 0)
            luaL_error(L, "alignment is not a power of 2");
        return;
    default:
        lua_pushfstring(L, "invalid format option '%c'", option);
        luaL_argerror(L, 1, lua_tostring(L, -1));
    }
}

static int is_int(int option) {
    return option && strchr("bBhHlLTiI", option) != NULL;
}

static void turn(char *bytes, size_t n) {
    size_t i;
    for (i = 0; i < n / 2; i++) {
        char c = bytes[i];
        bytes[i] = bytes[n - 1 - i];
        bytes[n - 1 - i] = c;
    }
}

static int struct_pack(lua_State *L) {
    const char *f = luaL_checkstring(L, 1);
    layout l = {1, 1};
    int arg = 2;
    size_t total = 0;
    luaL_Buffer b;
    lua_pushnil(L); /* separates the arguments from the buffer */
    luaL_buffinit(L, &b);
    while (*f) {
        int option = *f++;
        size_t size = option_size(L, option, &f);
        size_t pad = padding(total, &l, option, size), i;
        char bytes[32];
        total += pad;
        while (pad-- > 0) luaL_addchar(&b, 0);
        if (is_int(option)) {
            lua_Number n = luaL_checknumber(L, arg++);
            uint64_t u = n < 0 ? (uint64_t)(int64_t)n : (uint64_t)n;
            for (i = 0; i < size; i++)
                bytes[i] = (char)(i < 8 ? u >> 8 * i : 0);
            if (!l.little) turn(bytes, size);
            luaL_addlstring(&b, bytes, size);
        } else if (option == 'x') {
            luaL_addchar(&b, 0);
        } else if (option == 'f' || option == 'd') {
            double d = luaL_checknumber(L, arg++);
            float single = (float)d;
            if (option == 'f')
                memcpy(bytes, &single, size);
            else
                memcpy(bytes, &d, size);
            if (!l.little) turn(bytes, size);
            luaL_addlstring(&b, bytes, size);
        } else if (option == 'c' || option == 's') {
            size_t len;
            const char *s = luaL_checklstring(L, arg++, &len);
            if (size == 0) size = len;
            luaL_argcheck(L, len >= size, arg, "string too short");
            luaL_addlstring(&b, s, size);
            if (option == 's') {
                luaL_addchar(&b, 0);
                size++;
            }
        } else {
            control(L, option, &f, &l);
        }
        total += size;
    }
    luaL_pushresult(&b);
    return 1;
}

static lua_Number read_int(const char *at, size_t size, int little,
                           int is_signed) {
    uint64_t u = 0;
    size_t i;
    for (i = 0; i < size; i++)
        u = u << 8 | (unsigned char)at[little ? size - 1 - i : i];
    if (!is_signed) return (lua_Number)u;
    if (size < 8 && size > 0 && u >> (8 * size - 1))
        u |= ~(uint64_t)0 << 8 * size;
    return (lua_Number)(int64_t)u;
}

static int struct_unpack(lua_State *L) {
    size_t len, at;
    const char *f = luaL_checkstring(L, 1);
    const char *data = luaL_checklstring(L, 2, &len);
    lua_Integer from = luaL_optinteger(L, 3, 1);
    layout l = {1, 1};
    int n = 0;
    luaL_argcheck(L, from > 0, 3, "offset must be 1 or greater");
    at = (size_t)from - 1;
    while (*f) {
        int option = *f++;
        size_t size = option_size(L, option, &f);
        at += padding(at, &l, option, size);
        luaL_argcheck(L, size <= len && at <= len - size, 2,
                      "data string too short");
        luaL_checkstack(L, 2, "too many results");
        if (is_int(option)) {
            lua_pushnumber(
                L, read_int(data + at, size, l.little, islower(option) != 0));
            n++;
        } else if (option == 'f' || option == 'd') {
            char bytes[8];
            float single;
            double d;
            memcpy(bytes, data + at, size);
            if (!l.little) turn(bytes, size);
            memcpy(&single, bytes, sizeof single);
            memcpy(&d, bytes, sizeof d);
            lua_pushnumber(L, option == 'f' ? (double)single : d);
            n++;
        } else if (option == 'c') {
            if (size == 0) {
                if (n == 0 || !lua_isnumber(L, -1))
                    luaL_error(L, "format 'c0' needs a previous size");
                size = (size_t)lua_tonumber(L, -1);
                lua_pop(L, 1);
                n--;
                luaL_argcheck(L, size <= len && at <= len - size, 2,
                              "data string too short");
            }
            lua_pushlstring(L, data + at, size);
            n++;
        } else if (option == 's') {
            const char *end = memchr(data + at, 0, len - at);
            if (!end) luaL_error(L, "unfinished string in data");
            size = (size_t)(end - (data + at)) + 1;
            lua_pushlstring(L, data + at, size - 1);
            n++;
        } else if (option != 'x') {
            control(L, option, &f, &l);
        }
        at += size;
    }
    lua_pushinteger(L, (lua_Integer)at + 1);
    return n + 1;
}

static int struct_size(lua_State *L) {
    const char *f = luaL_checkstring(L, 1);
    layout l = {1, 1};
    size_t at = 0;
    while (*f) {
        int option = *f++;
        size_t size = option_size(L, option, &f);
        at += padding(at, &l, option, size);
        if (option == 's')
            luaL_argerror(L, 1, "option 's' has no fixed size");
        else if (option == 'c' && size == 0)
            luaL_argerror(L, 1, "option 'c0' has no fixed size");
        if (!isalnum(option)) control(L, option, &f, &l);
        at += size;
    }
    lua_pushinteger(L, (lua_Integer)at);
    return 1;
}

/* --- the state ----------------------------------------------------------- */

static void open_library(const char *name, lua_CFunction open) {
    lua_pushcfunction(lua, open);
    lua_pushstring(lua, name);
    lua_call(lua, 1, 1);
    lua_setglobal(lua, name);
}

/* Sets the global NAME to a new library, and leaves it on the stack. */
static void add_library(const char *name, const luaL_Reg *of) {
    lua_newtable(lua);
    for (; of->name; of++) {
        lua_pushcfunction(lua, of->func);
        lua_setfield(lua, -2, of->name);
    }
    lua_pushvalue(lua, -1);
    lua_setglobal(lua, name);
}

static void forget_global(const char *name) {
    lua_pushnil(lua);
    lua_setglobal(lua, name);
}

static void lua_begin(void) {
    static const luaL_Reg of_redis[] = {
        {"call", redis_call_},
        {"pcall", redis_pcall_},
        {"sha1hex", redis_sha1hex},
        {"error_reply", redis_error_reply},
        {"status_reply", redis_status_reply},
        {"log", redis_nothing},
        {"set_repl", redis_nothing},
        {"replicate_commands", redis_true},
        {NULL, NULL},
    };
    static const luaL_Reg of_struct[] = {
        {"pack", struct_pack},
        {"unpack", struct_unpack},
        {"size", struct_size},
        {NULL, NULL},
    };
    static const char *const levels[] = {"LOG_DEBUG", "LOG_VERBOSE",
                                         "LOG_NOTICE", "LOG_WARNING"};
    static const char *const hidden[] = {"loadfile", "dofile",  "print",
                                         "newproxy", "module",  "require",
                                         "package",  "getfenv", "setfenv"};
    size_t i;
    if (lua) return;
    lua = luaL_newstate();
    if (!lua) abort();
    open_library("_G", luaopen_base);
    open_library(LUA_TABLIBNAME, luaopen_table);
    open_library(LUA_STRLIBNAME, luaopen_string);
    open_library(LUA_MATHLIBNAME, luaopen_math);
    add_library("struct", of_struct);
    add_library("redis", of_redis);
    for (i = 0; i < 4; i++) {
        lua_pushinteger(lua, (lua_Integer)i);
        lua_setfield(lua, -2, levels[i]);
    }
    lua_pushliteral(lua, "7.0.15");
    lua_setfield(lua, -2, "REDIS_VERSION");
    lua_pushinteger(lua, 0x07000f);
    lua_setfield(lua, -2, "REDIS_VERSION_NUM");
    lua_getglobal(lua, LUA_TABLIBNAME);
    lua_getfield(lua, -1, "unpack"); /* servers with Lua 5.4 have it, too */
    if (!lua_isnil(lua, -1)) lua_setglobal(lua, "unpack");
    lua_settop(lua, 0);
    for (i = 0; i < sizeof hidden / sizeof *hidden; i++)
        forget_global(hidden[i]);
    lua_pushcfunction(lua, pcall_);
    lua_setglobal(lua, "pcall");
    lua_pushboolean(lua, 0); /* later, new globals are refused */
    lua_setglobal(lua, "KEYS");
    lua_pushboolean(lua, 0);
    lua_setglobal(lua, "ARGV");
    lua_getglobal(lua, "_G");
    lua_createtable(lua, 0, 2);
    lua_pushcfunction(lua, on_unknown_global);
    lua_setfield(lua, -2, "__index");
    lua_pushcfunction(lua, on_new_global);
    lua_setfield(lua, -2, "__newindex");
    lua_setmetatable(lua, -2);
    lua_settop(lua, 0);
}

static void script_sha1(const char *text, size_t len, char sha[41]) {
    const map_slot *at = map_find(&digests, text, len);
    blob *name;
    if (at) {
        memcpy(sha, at->v.p, 41);
        return;
    }
    sha1_hex(text, len, sha);
    name = blob_new(text, len);
    map_put(&digests, name)->v.p = memcpy(malloc(41), sha, 41);
    blob_drop(name);
}

/* Returns the compiled script, or NULL after an error reply. */
static map_slot *compile(call *k, const char *text, size_t len,
                         const char sha[41]) {
    map_slot *at;
    blob *name;
    lua_begin();
    at = map_find(&compiled, sha, 40);
    if (!at) {
        int ref;
        if (luaL_loadbuffer(lua, text, len, "@user_script") != 0) {
            r_error(k, "Error compiling script (new function): %s",
                    lua_tostring(lua, -1));
            lua_pop(lua, 1);
            return NULL;
        }
        ref = luaL_ref(lua, LUA_REGISTRYINDEX);
        name = blob_new(sha, 40);
        at = map_put(&compiled, name);
        at->v.p = (void *)(intptr_t)ref;
        blob_drop(name);
    }
    if (!map_find(&k->r->scripts, sha, 40)) map_put(&k->r->scripts, at->key);
    return at;
}

/* Pops the value on top of the stack and makes it the reply. */
static void answer(call *k) {
    int type = lua_type(lua, -1);
    int64_t n, i;
    if (!lua_checkstack(lua, 4)) {
        r_error(k, "reached lua stack limit");
        lua_pop(lua, 1);
        return;
    }
    if (type == LUA_TSTRING) {
        size_t len;
        const char *s = lua_tolstring(lua, -1, &len);
        r_bulk(k, s, len);
    } else if (type == LUA_TBOOLEAN && lua_toboolean(lua, -1)) {
        r_int(k, 1);
    } else if (type == LUA_TNUMBER && LUA_VERSION_NUM >= 504) {
        /* Dragonfly would send a float as a text. */
        if (is_whole(lua, -1))
            r_int(k, lua_tointeger(lua, -1));
        else
            r_error(k, "a float in a reply: %.17g", lua_tonumber(lua, -1));
    } else if (type == LUA_TNUMBER) {
        r_int(k, (int64_t)lua_tonumber(lua, -1));
    } else if (type == LUA_TTABLE) {
        lua_pushliteral(lua, "err");
        lua_rawget(lua, -2);
        if (lua_type(lua, -1) == LUA_TSTRING) {
            r_error(k, "-%s", lua_tostring(lua, -1));
            lua_pop(lua, 2);
            return;
        }
        lua_pop(lua, 1);
        lua_pushliteral(lua, "ok");
        lua_rawget(lua, -2);
        if (lua_type(lua, -1) == LUA_TSTRING) {
            r_status(k, lua_tostring(lua, -1));
            lua_pop(lua, 2);
            return;
        }
        lua_pop(lua, 1);
        for (n = 0;; n++) {
            int none;
            lua_rawgeti(lua, -1, (int)n + 1);
            none = lua_isnil(lua, -1);
            lua_pop(lua, 1);
            if (none) break;
        }
        r_array(k, n);
        for (i = 1; i <= n; i++) {
            lua_rawgeti(lua, -1, (int)i);
            answer(k);
        }
    } else {
        r_null(k);
    }
    lua_pop(lua, 1);
}

static void list_global(const call *k, const char *name, int from, int n) {
    int i;
    lua_createtable(lua, n, 0);
    for (i = 0; i < n; i++) {
        lua_pushlstring(lua, k->argv[from + i], k->lens[from + i]);
        lua_rawseti(lua, -2, i + 1);
    }
    lua_setglobal(lua, name);
}

int64_t lua_runs(const char sha[41]) {
    const map_slot *at = map_find(&runs, sha, 40);
    return at ? (intptr_t)at->v.p : 0;
}

static void run_script(call *k, const map_slot *script, int keys) {
    map_slot *count = map_find(&runs, script->key->s, script->key->len);
    int failed;
    if (!count) count = map_put(&runs, script->key);
    count->v.p = (void *)((intptr_t)count->v.p + 1);
    lua_pushcfunction(lua, on_error);
    lua_rawgeti(lua, LUA_REGISTRYINDEX, (int)(intptr_t)script->v.p);
    list_global(k, "KEYS", 3, keys);
    list_global(k, "ARGV", 3 + keys, k->argc - 3 - keys);
    k->r->dirty_script = 0;
    k->r->oom_at_start = k->c && k->r->faults.out_of_memory;
    k->r->script_stale = k->c && k->r->faults.error &&
                         strncmp(k->r->faults.error, "MASTERDOWN", 10) == 0;
    k->r->read_only_script = strstr(k->cmd->name, "_ro") != NULL;
    running = k;
    k->r->lua_running = 1;
    failed = lua_pcall(lua, 0, 1, 1);
    k->r->lua_running = 0;
    running = NULL;
    if (!failed) {
        answer(k);
    } else {
        const char *text = NULL, *source = NULL, *line = NULL;
        if (lua_istable(lua, -1)) {
            lua_getfield(lua, -1, "err");
            text = lua_tostring(lua, -1);
            lua_getfield(lua, -2, "source");
            source = lua_tostring(lua, -1);
            lua_getfield(lua, -3, "line");
            line = lua_tostring(lua, -1);
        } else {
            text = lua_tostring(lua, -1);
        }
        if (source && line)
            r_error(k, "-%s script: %s, on %s:%s.", text ? text : "ERR",
                    script->key->s, source, line);
        else
            r_error(k, "-%s", text ? text : "ERR");
    }
    lua_settop(lua, 0);
}

void cmd_eval(call *k) {
    int by_sha = (k->cmd->name[4] | 32) == 's', i;
    char sha[41];
    int64_t keys;
    map_slot *script;
    if (by_sha && k->lens[1] != 40) {
        r_error(k, "-NOSCRIPT No matching script. Please use EVAL.");
        return;
    }
    if (!to_int(k->argv[2], k->lens[2], &keys)) {
        r_error(k, "value is not an integer or out of range");
        return;
    }
    if (keys > k->argc - 3) {
        r_error(k, "Number of keys can't be greater than number of args");
        return;
    }
    if (keys < 0) {
        r_error(k, "Number of keys can't be negative");
        return;
    }
    if (by_sha) {
        for (i = 0; i < 40; i++)
            sha[i] = (char)tolower((unsigned char)k->argv[1][i]);
        sha[40] = 0;
        if (!map_find(&k->r->scripts, sha, 40)) {
            r_error(k, "-NOSCRIPT No matching script. Please use EVAL.");
            return;
        }
        script = map_find(&compiled, sha, 40);
    } else {
        script_sha1(k->argv[1], k->lens[1], sha);
        script = compile(k, k->argv[1], k->lens[1], sha);
    }
    if (script) run_script(k, script, (int)keys);
}

void cmd_script(call *k) {
    char sha[41];
    int i;
    if (strcmp(k->cmd->full, "script|load") == 0) {
        script_sha1(k->argv[2], k->lens[2], sha);
        if (compile(k, k->argv[2], k->lens[2], sha)) r_bulk(k, sha, 40);
    } else if (strcmp(k->cmd->full, "script|exists") == 0) {
        r_array(k, k->argc - 2);
        for (i = 2; i < k->argc; i++)
            r_int(k, map_find(&k->r->scripts, k->argv[i], k->lens[i]) != NULL);
    } else {
        lua_forget(k->r);
        r_status(k, "OK");
    }
}

void lua_track_keys(void) {
    int64_t keys = 0, i;
    to_int(running->argv[2], running->lens[2], &keys);
    for (i = 3; i < 3 + keys; i++)
        client_track(running->c, running->argv[i], running->lens[i]);
}

void lua_forget(redis *r) {
    map_free(&r->scripts);
}
