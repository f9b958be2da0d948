/* An OpenAI-like streaming server whose timing is known, for measuring the clients that measure servers.
 *
 * A request's first chunk leaves TTFT ms after the request was read, every further one ITL ms after the one before, one
 * token each, as many as `max_tokens` (or `max_completion_tokens`) says. Due times follow from the first, so a chunk that
 * leaves late delays none of the others. How late chunks left is counted and told by GET /counts: what a client adds to
 * that is its own.
 *
 * One thread, one epoll, one timer descriptor. Right before the next due time it does not sleep, as waking up takes
 * longer than what is measured. For loopback only. It ends when its standard input does.
 *
 *   cc -O2 -o truth_server truth_server.c && ./truth_server [TTFT_MS [ITL_MS]]      first line of output: the port
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_CONNECTIONS = 16384,
    MOST_REQUEST_BYTES = 1 << 24,
    LATE_STEP_US = 10,   /* width of a bin of lateness */
    LATE_BINS = 10000,   /* the last one is everything from 100 ms */
    BETWEEN_POLLS = 8,   /* chunks sent before sockets are looked at again: a request must not lie unread */
    FRAME_BYTES = 768,
    AWAKE_NS = 80000,    /* before a due time: about what waking up takes */
};

static const char *const WORDS[] = {" the", " of", " and", " to", " in", " it", " was", " that", " for", " with", "\\n", "."};
enum { WORD_COUNT = sizeof WORDS / sizeof WORDS[0] };

typedef struct {
    char *bytes;
    size_t length, room;
} Buffer;

typedef struct {
    int socket;
    int is_open;
    unsigned serial;          /* of the request; an appointment of an earlier one is void */
    Buffer in, out;           /* `out` holds what the kernel did not take at once */
    int streaming, chat, usage;
    long wanted, sent;
    int64_t due_ns;
    char head[512], tail[128]; /* of a token frame, before and behind its text */
    size_t head_length, tail_length;
} Connection;

typedef struct {
    int64_t due_ns;
    int slot;
    unsigned serial;
} Appointment;

/* First in, first out, and thereby ordered: every appointment of one ring is made the same time ahead. */
typedef struct {
    Appointment *slots;
    size_t first, count, room;
} Ring;

static Connection connections[MOST_CONNECTIONS];
static Ring first_chunks, next_chunks;
static int64_t ttft_ns = 50 * 1000000LL, itl_ns = 10 * 1000000LL;
static int poller, listener, timer;
static uint64_t requests_seen, chunks_sent, streams_open, lateness[LATE_BINS];
static unsigned random_state = 2463534242u;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void append(Buffer *buffer, const char *bytes, size_t length) {
    if (buffer->length + length + 1 > buffer->room) {
        buffer->room = (buffer->length + length + 1) * 2;
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes) die("memory");
    }
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
    buffer->bytes[buffer->length] = 0; /* so that it can be searched as a string */
}

static void drop_front(Buffer *buffer, size_t length) {
    buffer->length -= length;
    memmove(buffer->bytes, buffer->bytes + length, buffer->length + 1);
}

static void ring_add(Ring *ring, Appointment made) {
    if (ring->count == ring->room) {
        size_t room = ring->room ? ring->room * 2 : 1024;
        Appointment *slots = malloc(room * sizeof *slots);
        if (!slots) die("memory");
        for (size_t i = 0; i < ring->count; i++) slots[i] = ring->slots[(ring->first + i) % ring->room];
        free(ring->slots);
        *ring = (Ring){slots, 0, ring->count, room};
    }
    ring->slots[(ring->first + ring->count++) % ring->room] = made;
}

static void close_connection(Connection *c) {
    if (c->streaming) streams_open--;
    close(c->socket);
    free(c->in.bytes);
    free(c->out.bytes);
    unsigned serial = c->serial + 1;
    memset(c, 0, sizeof *c);
    c->serial = serial;
}

static void watch(Connection *c, uint32_t events, int operation) {
    struct epoll_event wish = {.events = events, .data.u32 = (uint32_t)(c - connections)};
    if (epoll_ctl(poller, operation, c->socket, &wish)) die("epoll_ctl");
}

/* Send what lies in `out`, then `bytes`; what the kernel does not take is kept. 0, or -1 when the client is gone. */
static int send_bytes(Connection *c, const char *bytes, size_t length) {
    if (!c->out.length) {
        ssize_t taken = send(c->socket, bytes, length, MSG_NOSIGNAL);
        if (taken == (ssize_t)length) return 0;
        if (taken < 0 && errno != EAGAIN) return -1;
        if (taken < 0) taken = 0;
        append(&c->out, bytes + taken, length - (size_t)taken);
        watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
        return 0;
    }
    append(&c->out, bytes, length);
    return 0;
}

static int send_kept(Connection *c) {
    ssize_t taken = send(c->socket, c->out.bytes, c->out.length, MSG_NOSIGNAL);
    if (taken < 0) return errno == EAGAIN ? 0 : -1;
    drop_front(&c->out, (size_t)taken);
    if (!c->out.length) watch(c, EPOLLIN, EPOLL_CTL_MOD);
    return 0;
}

static int send_json(Connection *c, int status, const char *json) {
    char answer[2048];
    int length = snprintf(answer, sizeof answer,
                          "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status,
                          status == 200 ? "OK" : "Not Found", strlen(json), json);
    return send_bytes(c, answer, (size_t)length);
}

/* One SSE frame as one HTTP chunk, the way uvicorn writes them. */
static size_t put_frame(char *to, const char *format, ...) {
    char data[FRAME_BYTES];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(data, sizeof data, format, values);
    va_end(values);
    return (size_t)sprintf(to, "%x\r\ndata: %s\n\n\r\n", length + 8, data);
}

static const char CHAT_HEAD[] = "{\"id\":\"chatcmpl-%08x%08x\",\"object\":\"chat.completion.chunk\",\"created\":1764500000,"
                                "\"model\":\"truth\",\"choices\":[";
static const char TEXT_HEAD[] = "{\"id\":\"cmpl-%08x%08x\",\"object\":\"text_completion\",\"created\":1764500000,"
                                "\"model\":\"truth\",\"choices\":[";

static unsigned draw(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static int begin_stream(Connection *c, int64_t read_ns) {
    static const char head[] = "HTTP/1.1 200 OK\r\nserver: truth\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    c->streaming = 1;
    c->sent = 0;
    c->serial++;
    streams_open++;
    int length = sprintf(c->head, c->chat ? CHAT_HEAD : TEXT_HEAD, draw(), c->serial);
    length += sprintf(c->head + length, c->chat ? "{\"index\":0,\"delta\":{\"content\":\"" : "{\"index\":0,\"text\":\"");
    c->head_length = (size_t)length;
    c->tail_length = (size_t)sprintf(c->tail, c->chat ? "\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}"
                                                      : "\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]}");
    c->due_ns = read_ns + ttft_ns;
    ring_add(&first_chunks, (Appointment){c->due_ns, (int)(c - connections), c->serial});
    return send_bytes(c, head, sizeof head - 1);
}

/* The last token, usage where it was asked for, [DONE] and the end of the body. */
static size_t put_end(Connection *c, char *to, const char *word) {
    char opening[512];
    memcpy(opening, c->head, c->head_length);
    opening[c->head_length] = 0;
    size_t length = put_frame(to, "%s%s\"%s,\"logprobs\":null,\"finish_reason\":\"length\"}]}", opening, word, c->chat ? "}" : "");
    if (c->usage) {
        *(strstr(opening, "\"choices\":[") + 11) = 0;
        length += put_frame(to + length, "%s],\"usage\":{\"prompt_tokens\":64,\"total_tokens\":%ld,\"completion_tokens\":%ld}}",
                            opening, 64 + c->wanted, c->wanted);
    }
    return length + (size_t)sprintf(to + length, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

static int send_chunk(Connection *c) {
    char frames[4 * FRAME_BYTES];
    size_t length = 0;
    const char *word = WORDS[draw() % WORD_COUNT];
    if (c->chat && !c->sent) {
        char opening[512];
        memcpy(opening, c->head, c->head_length);
        opening[c->head_length - strlen("\"content\":\"")] = 0;
        length = put_frame(frames, "%s\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}", opening);
    }
    c->sent++;
    chunks_sent++;
    if (c->sent >= c->wanted) {
        length += put_end(c, frames + length, word);
        c->streaming = 0;
        streams_open--;
        return send_bytes(c, frames, length);
    }
    size_t word_length = strlen(word);
    length += (size_t)sprintf(frames + length, "%zx\r\ndata: ", c->head_length + word_length + c->tail_length + 8);
    memcpy(frames + length, c->head, c->head_length), length += c->head_length;
    memcpy(frames + length, word, word_length), length += word_length;
    memcpy(frames + length, c->tail, c->tail_length), length += c->tail_length;
    memcpy(frames + length, "\n\n\r\n", 4), length += 4;
    c->due_ns += itl_ns;
    ring_add(&next_chunks, (Appointment){c->due_ns, (int)(c - connections), c->serial});
    return send_bytes(c, frames, length);
}

static long late_us(double share) {
    uint64_t total = 0, below = 0;
    for (int i = 0; i < LATE_BINS; i++) total += lateness[i];
    for (int i = 0; i < LATE_BINS; i++) {
        below += lateness[i];
        if (total && (double)below >= share * (double)total) return (long)(i + 1) * LATE_STEP_US;
    }
    return 0;
}

static int answer_counts(Connection *c) {
    char json[512];
    snprintf(json, sizeof json,
             "{\"requests\": %lu, \"open\": %lu, \"chunks\": %lu, \"late_p50_us\": %ld, \"late_p99_us\": %ld}",
             (unsigned long)requests_seen, (unsigned long)streams_open, (unsigned long)chunks_sent, late_us(0.5),
             late_us(0.99));
    return send_json(c, 200, json);
}

static long number_of(const char *body, const char *key) {
    const char *found = strstr(body, key);
    if (!found) return 0;
    return strtol(found + strlen(key) + strspn(found + strlen(key), " :"), NULL, 10);
}

static int answer(Connection *c, const char *head, const char *body, int64_t read_ns) {
    if (!strncmp(head, "POST /v1/", 9) && strstr(body, "\"stream\"")) {
        requests_seen++;
        c->chat = !strncmp(head + 9, "chat/", 5);
        c->usage = strstr(body, "\"include_usage\"") != NULL;
        c->wanted = number_of(body, "\"max_completion_tokens\"");
        if (c->wanted <= 0) c->wanted = number_of(body, "\"max_tokens\"");
        if (c->wanted <= 0) c->wanted = 128;
        return begin_stream(c, read_ns);
    }
    if (!strncmp(head, "GET /counts", 11)) return answer_counts(c);
    if (!strncmp(head, "GET /v1/models", 14))
        return send_json(c, 200, "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\",\"max_model_len\":32768}]}");
    if (!strncmp(head, "GET /health", 11)) return send_json(c, 200, "{}");
    return send_json(c, 404, "{\"detail\":\"Not Found\"}");
}

static long content_length(const char *head) {
    const char *line = strcasestr(head, "\r\ncontent-length:");
    return line ? strtol(line + 17, NULL, 10) : 0;
}

/* Answer every whole request that has been read; while a stream runs the next one waits. */
static int answer_whole(Connection *c, int64_t read_ns) {
    while (!c->streaming && c->in.length) {
        char *end = strstr(c->in.bytes, "\r\n\r\n");
        if (!end) return c->in.length < MOST_REQUEST_BYTES ? 0 : -1;
        *end = 0;
        long body_length = content_length(c->in.bytes);
        *end = '\r';
        size_t head_length = (size_t)(end - c->in.bytes) + 4;
        if (body_length < 0 || body_length > MOST_REQUEST_BYTES) return -1;
        size_t whole = head_length + (size_t)body_length;
        if (c->in.length < whole) return 0;
        char beyond = c->in.bytes[whole];
        c->in.bytes[whole] = 0;
        int failed = answer(c, c->in.bytes, c->in.bytes + head_length, read_ns);
        c->in.bytes[whole] = beyond;
        drop_front(&c->in, whole);
        if (failed) return -1;
    }
    return 0;
}

static int read_some(Connection *c) {
    char bytes[65536];
    ssize_t got = recv(c->socket, bytes, sizeof bytes, 0);
    if (got < 0) return errno == EAGAIN ? 0 : -1;
    if (!got) return -1;
    int64_t read_ns = now_ns();
    append(&c->in, bytes, (size_t)got);
    return answer_whole(c, read_ns);
}

static void accept_all(void) {
    int socket;
    while ((socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        int slot = 0, on = 1;
        while (slot < MOST_CONNECTIONS && connections[slot].is_open) slot++;
        if (slot == MOST_CONNECTIONS) {
            close(socket);
            continue;
        }
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Connection *c = &connections[slot];
        c->socket = socket;
        c->is_open = 1;
        watch(c, EPOLLIN, EPOLL_CTL_ADD);
    }
}

/* Send what is due of one ring, a few at most; whether something was. */
static int send_due(Ring *ring) {
    int sent = 0;
    int64_t now = now_ns();
    while (ring->count && ring->slots[ring->first].due_ns <= now && sent < BETWEEN_POLLS) {
        Appointment due = ring->slots[ring->first];
        ring->first = (ring->first + 1) % ring->room;
        ring->count--;
        Connection *c = &connections[due.slot];
        if (!c->is_open || !c->streaming || c->serial != due.serial) continue;
        int64_t late = (now - due.due_ns) / 1000 / LATE_STEP_US;
        lateness[late < LATE_BINS ? late : LATE_BINS - 1]++;
        if (send_chunk(c) || (!c->streaming && c->in.length && answer_whole(c, now_ns()))) close_connection(c);
        sent++;
        now = now_ns();
    }
    return sent;
}

/* How epoll_wait is to wait: not at all (0) shortly before something is due, else for an event (-1) or the timer's. */
static int set_timer(void) {
    int64_t due = INT64_MAX;
    if (first_chunks.count) due = first_chunks.slots[first_chunks.first].due_ns;
    if (next_chunks.count && next_chunks.slots[next_chunks.first].due_ns < due)
        due = next_chunks.slots[next_chunks.first].due_ns;
    if (due == INT64_MAX) return -1;
    int64_t ring = due - AWAKE_NS;
    if (ring <= now_ns()) return 0;
    struct itimerspec at = {.it_value = {ring / 1000000000LL, ring % 1000000000LL}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL)) die("timerfd_settime");
    return -1;
}

static int listen_on_loopback(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) die("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &size)) die("getsockname");
    return ntohs(address.sin_port);
}

int main(int count, char **arguments) {
    enum { LISTENER = MOST_CONNECTIONS, INPUT, TIMER };
    if (count > 1) ttft_ns = (int64_t)(atof(arguments[1]) * 1e6);
    if (count > 2) itl_ns = (int64_t)(atof(arguments[2]) * 1e6);
    signal(SIGPIPE, SIG_IGN);
    int port = listen_on_loopback();
    poller = epoll_create1(0);
    struct epoll_event wish = {.events = EPOLLIN, .data.u32 = LISTENER};
    if (poller < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wish)) die("epoll");
    wish.data.u32 = INPUT;
    if (epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &wish)) die("standard input must be a pipe");
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    wish.data.u32 = TIMER;
    if (timer < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, timer, &wish)) die("timerfd");
    printf("%d\n", port);
    fflush(stdout);
    for (;;) {
        struct epoll_event events[256];
        int ready = epoll_wait(poller, events, 256, set_timer());
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.u32 == INPUT) {
                char byte;
                if (read(STDIN_FILENO, &byte, 1) <= 0) return 0;
                continue;
            }
            if (events[i].data.u32 == TIMER) { /* off until it is set again */
                uint64_t rung;
                if (read(timer, &rung, sizeof rung) < 0 && errno != EAGAIN) die("timerfd");
                continue;
            }
            if (events[i].data.u32 == LISTENER) {
                accept_all();
                continue;
            }
            Connection *c = &connections[events[i].data.u32];
            if (!c->is_open) continue;
            int gone = events[i].events & (EPOLLERR | EPOLLHUP);
            if (!gone && events[i].events & EPOLLOUT) gone = send_kept(c);
            if (!gone && events[i].events & EPOLLIN) gone = read_some(c);
            if (gone) close_connection(c);
        }
        send_due(&first_chunks);
        send_due(&next_chunks);
    }
}
