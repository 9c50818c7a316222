/* The replies of the commands, as bytes for a client or as values of Lua. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <lua.h>
#include <lauxlib.h>
#include "redis_impl.h"

int lua_like = LUA_LIKE_REDIS;

static void head(call *k, char type, int64_t n) {
    buf_add(k->to->out, &type, 1);
    buf_int(k->to->out, n);
    buf_add(k->to->out, "\r\n", 2);
}

/* Put the value on top of the stack into the innermost array. If that array is
 * full, put it into the array around it, and so on. */
static void put(reply *to) {
    while (to->depth > 0) {
        int d = to->depth - 1;
        lua_rawseti(to->lua, -2, (int)++to->open[d].at);
        if (to->open[d].at < to->open[d].n) return;
        to->depth--;
    }
}

void r_int(call *k, int64_t n) {
    k->r->work++;
    if (k->to->lua) {
        lua_pushinteger(k->to->lua, n);
        put(k->to);
    } else {
        head(k, ':', n);
    }
}

void r_bulk(call *k, const char *s, size_t len) {
    k->r->work += 1 + (int64_t)(len >> 10);
    if (k->to->lua) {
        lua_pushlstring(k->to->lua, s, len);
        put(k->to);
    } else {
        head(k, '$', (int64_t)len);
        buf_add(k->to->out, s, len);
        buf_add(k->to->out, "\r\n", 2);
    }
}

void r_blob(call *k, const blob *b) {
    r_bulk(k, b->s, b->len);
}

static void nothing(call *k, const char *bytes) {
    k->r->work++;
    if (k->to->lua) {
        lua_pushboolean(k->to->lua, 0);
        put(k->to);
    } else {
        buf_text(k->to->out, bytes);
    }
}

void r_null(call *k) {
    nothing(k, "$-1\r\n");
}

void r_null_array(call *k) {
    nothing(k, "*-1\r\n");
}

void r_array(call *k, int64_t n) {
    reply *to = k->to;
    if (!to->lua) {
        head(k, '*', n);
        return;
    }
    luaL_checkstack(to->lua, 4, "a reply is nested too deep");
    lua_createtable(to->lua, (int)n, 0);
    if (n == 0) {
        put(to);
        return;
    }
    to->open[to->depth].n = n;
    to->open[to->depth++].at = 0;
}

void r_status(call *k, const char *s) {
    if (k->to->lua) {
        lua_createtable(k->to->lua, 0, 1);
        lua_pushstring(k->to->lua, s);
        lua_setfield(k->to->lua, -2, "ok");
        put(k->to);
    } else {
        buf_add(k->to->out, "+", 1);
        for (; *s; s++)
            buf_add(k->to->out, *s == '\r' || *s == '\n' ? " " : s, 1);
        buf_add(k->to->out, "\r\n", 2);
    }
}

/* If the text does not begin with '-' and a code, its code is ERR. */
void r_error(call *k, const char *format, ...) {
    buf *e = &k->r->error;
    va_list args;
    size_t i;
    int len;
    va_start(args, format);
    len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    e->len = 0;
    buf_text(e, "-ERR ");
    buf_room(e, (size_t)len + 1);
    va_start(args, format);
    vsnprintf(e->s + e->len, (size_t)len + 1, format, args);
    va_end(args);
    e->len += (size_t)len;
    for (i = 0; i < e->len; i++)
        if (e->s[i] == '\r' || e->s[i] == '\n') e->s[i] = ' ';
    if (e->s[5] == '-') memmove(e->s, e->s + 5, (size_t)len + 1);
    k->to->failed = 1;
    if (k->to->lua) return; /* redis_lua.c turns it into a Lua error */
    buf_text(k->to->out, e->s);
    buf_add(k->to->out, "\r\n", 2);
}

void r_double(call *k, double d) {
    char text[48];
    if (k->to->lua && lua_like == LUA_LIKE_DRAGONFLY && d == floor(d) &&
        fabs(d) < 9e18)
        r_int(k, (int64_t)d);
    else if (k->to->lua && lua_like == LUA_LIKE_DRAGONFLY) {
        lua_pushnumber(k->to->lua, d);
        put(k->to);
    } else if (isinf(d))
        r_bulk(k, d > 0 ? "inf" : "-inf", d > 0 ? 3 : 4);
    else
        r_bulk(k, text, double_text(d, text));
}
