/* What the stand-ins share: a script that says which call fails, and a log of the calls.
 *
 * The environment variable STANDIN holds words:
 *   version=12080             what the driver says of itself
 *   devices=1                 how many there are
 *   vram=BYTES                memory of each device
 *   read_only=0               the device cannot register read-only memory
 *   register_bytes=BYTES      the most that may be registered, and
 *   register_number=N         the most registrations
 *   fail=FUNCTION:N:ERROR     call N (from 1; 0: each) of FUNCTION answers ERROR
 *   hang=FUNCTION             FUNCTION never returns
 *   abort=FUNCTION            FUNCTION ends the process
 *   corrupt=FUNCTION          FUNCTION closes descriptor 0
 *   mode=gds|p2pdma|compat    what cuFile says it does
 *   batch=0                   cuFile has no batches
 *   short=BYTES               the most that a cuFile read gives
 *   log=FILE                  one line for each call is added to it
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALLS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char name[48]; long calls; } counted[CALLS];

/* The text of `key=` in STANDIN, from `*from` on; NULL if there is none (left). */
static const char *word(const char *key, const char **from) {
    const char *at = *from ? *from : getenv("STANDIN");
    size_t len = strlen(key);
    while (at && *at) {
        while (*at == ' ') at++;
        const char *here = at;
        at = strchr(at, ' ');
        if (!at) at = here + strlen(here);
        if (!strncmp(here, key, len) && here[len] == '=') {
            *from = at;
            return here + len + 1;
        }
    }
    *from = NULL;
    return NULL;
}

static long number(const char *key, long otherwise) {
    const char *from = NULL, *text = word(key, &from);
    return text ? strtol(text, NULL, 10) : otherwise;
}

static int is_word(const char *text, const char *name) {
    size_t len = strlen(name);
    return text && !strncmp(text, name, len) && (text[len] == ' ' || text[len] == 0 || text[len] == ':');
}

static void note(const char *format, ...) {
    const char *from = NULL, *file = word("log", &from);
    if (!file) return;
    char path[512] = "", line[512];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(file, " "), file);
    va_list arguments;
    va_start(arguments, format);
    int len = snprintf(line, sizeof line, "%d ", (int)getpid());
    len += vsnprintf(line + len, sizeof line - len - 1, format, arguments);
    va_end(arguments);
    line[len++] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, line, len) != len) abort();
    close(fd);
}

/* Counts a call of `name` and says with which error it must end, 0 for none. The lock is held by the caller. */
static int scripted(const char *name) {
    int slot = 0;
    while (slot < CALLS - 1 && counted[slot].name[0] && strcmp(counted[slot].name, name)) slot++;
    if (!counted[slot].name[0]) snprintf(counted[slot].name, sizeof counted[slot].name, "%s", name);
    long call = ++counted[slot].calls;
    const char *from = NULL, *text;
    if (is_word(word("abort", &from), name)) abort();
    from = NULL;
    if (is_word(word("corrupt", &from), name)) close(0);
    from = NULL;
    if (is_word(word("hang", &from), name)) {
        pthread_mutex_unlock(&lock);
        for (;;) pause();
    }
    for (from = NULL; (text = word("fail", &from));) {
        if (!is_word(text, name)) continue;
        char *rest;
        long which = strtol(text + strlen(name) + 1, &rest, 10);
        int error = *rest == ':' ? atoi(rest + 1) : 1;
        if (which == 0 || which == call) {
            note("%s failed %d", name, error);
            return error;
        }
    }
    return 0;
}

#endif
