/*
 * hiredis' names for libvalkey. `make libvalkey` compiles the tests with this
 * file. With DELAYQ_LIBVALKEY, delayq.h itself doesn't need these names.
 */
#ifndef TESTS_HIREDIS_H
#define TESTS_HIREDIS_H

#include <valkey/valkey.h>

#define redisAppendCommand valkeyAppendCommand
#define redisAppendCommandArgv valkeyAppendCommandArgv
#define redisCommand valkeyCommand
#define redisCommandArgv valkeyCommandArgv
#define redisConnect valkeyConnect
#define redisConnectUnix valkeyConnectUnix
#define redisFreeKeepFd valkeyFreeKeepFd
#define redisGetReply valkeyGetReply
#define redisvCommand valkeyvCommand
#ifndef DELAYQ_IMPLEMENTATION
#define redisBufferRead valkeyBufferRead
#define redisBufferWrite valkeyBufferWrite
#define redisConnectFd valkeyConnectFd
#define redisFree valkeyFree
#define redisGetReplyFromReader valkeyGetReplyFromReader
#define REDIS_OK VALKEY_OK
#define REDIS_REPLY_ARRAY VALKEY_REPLY_ARRAY
#define REDIS_REPLY_ERROR VALKEY_REPLY_ERROR
#define REDIS_REPLY_INTEGER VALKEY_REPLY_INTEGER
#define REDIS_REPLY_STRING VALKEY_REPLY_STRING
#endif
#define REDIS_REPLY_NIL VALKEY_REPLY_NIL

#endif
