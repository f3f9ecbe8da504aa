/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's process. It has slots of blocks. As soon as a slot is released it is given to a new
 * owner, who fills it: bytes of the old request that arrive later, and bytes that are read too
 * late, are seen.
 */
#define RIG_CELL_BYTES 16384
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "node/nodes.h"

#include "orders.h"

enum { CHANNEL = 3, OWNER = 0xA5, FILLERS_MAX = 256 };

typedef struct slot {
    uint32_t request;
    bool owned; /* by the new owner */
} slot;

typedef struct member {
    worker worker;
    setup setup;
    slot slots[SLOTS];
    struct rlimit files; /* as it was */
    int fillers[FILLERS_MAX];
    size_t filled;
} member;

static void say(tell_kind kind, uint32_t request, uint64_t number, const char *text)
{
    tell out = {.kind = kind, .request = request, .number = number};
    snprintf(out.text, sizeof(out.text), "%s", text);
    if (send(CHANNEL, &out, sizeof(out), 0) != sizeof(out))
        exit(1); /* the parent is gone */
}

/* --- slots ------------------------------------------------------------------------------------ */

static void blocks_in(uint32_t number, uint32_t blocks[SLOT_BLOCKS])
{
    for (uint32_t i = 0; i < SLOT_BLOCKS; i++) /* backwards: no two copies can become one */
        blocks[i] = (number + 1) * SLOT_BLOCKS - i;
}

/* Fills the slot as its new owner, or tells whether it is as that left it. */
static bool own(const member *me, uint32_t number, bool fill)
{
    size_t page = (size_t)RIG_HEADS / me->setup.tps * RIG_TOKENS * RIG_CELL;
    size_t bytes = SLOT_BLOCKS * page;
    for (size_t layer = 0; layer < RIG_LAYERS; layer++) {
        unsigned char *at = me->worker.memory + layer * RIG_BLOCKS * page + page + number * bytes;
        if (fill)
            memset(at, OWNER, bytes);
        else if (at[0] != OWNER || memcmp(at, at + 1, bytes - 1) != 0)
            return false;
    }
    return true;
}

static void check_slot(const member *me, uint32_t number)
{
    char text[96];
    if (!me->slots[number].owned || own(me, number, false))
        return;
    snprintf(text, sizeof(text), "a late write into slot %u, which request %u had", number,
             me->slots[number].request);
    say(TELL_WRONG, me->slots[number].request, 0, text);
}

static slot *slot_of(member *me, uint32_t request)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        if (me->slots[i].request == request && !me->slots[i].owned)
            return &me->slots[i];
    return NULL;
}

/* --- orders ----------------------------------------------------------------------------------- */

static void take(member *me, const order *in)
{
    uint32_t blocks[SLOT_BLOCKS];
    char id[16];
    kvferry_report *report = NULL;
    kvferry_report_create(&report);
    snprintf(id, sizeof(id), "r%u", in->request);
    blocks_in(in->slot, blocks);
    check_slot(me, in->slot);
    me->slots[in->slot] = (slot){.request = in->request};
    if (in->kind != ORDER_ASK)
        walk_cells(&me->worker, blocks, SLOT_TOKENS, in->request, true);
    kvferry_status status =
        in->kind == ORDER_ASK
            ? worker_ask(&me->worker, id, "p", in->where, blocks, SLOT_TOKENS, report)
            : worker_offer(&me->worker, id, blocks, SLOT_TOKENS,
                           in->kind == ORDER_OFFER ? KVFERRY_READY : KVFERRY_NOT_READY, report);
    say(TELL_TAKEN, in->request, (uint64_t)status,
        kvferry_report_count(report) ? kvferry_report_get(report, 0)->code : "");
    kvferry_report_free(report);
}

/* Its engine is connected. */
static void renew(const member *me, uint32_t request)
{
    char id[16];
    snprintf(id, sizeof(id), "r%u", request);
    if (kvferry_node_renew(me->worker.node, "p", id, NULL) != KVFERRY_OK)
        say(TELL_WRONG, request, 0, "it cannot be renewed");
    say(TELL_DONE, request, 0, "");
}

static void make_ready(const member *me, uint32_t request)
{
    char id[16];
    snprintf(id, sizeof(id), "r%u", request);
    kvferry_node_ready(me->worker.node, id);
    say(TELL_DONE, request, 0, "");
}

/* How many are open; *end is behind the highest. */
static uint64_t descriptors(rlim_t *end)
{
    uint64_t found = 0;
    DIR *directory = opendir("/proc/self/fd");
    *end = 0;
    for (struct dirent *at; directory && (at = readdir(directory)); found++)
        if ((rlim_t)atoi(at->d_name) + 1 > *end)
            *end = (rlim_t)atoi(at->d_name) + 1;
    if (directory)
        closedir(directory);
    return found;
}

/* Takes all numbers up to the highest in use. A limit below that would make poll fail, which never
 * happens to a process that opened too much. */
static void take_files(member *me)
{
    struct rlimit none = {0, me->files.rlim_max};
    descriptors(&none.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &none);
    for (int file; me->filled < FILLERS_MAX && (file = open("/dev/null", O_RDONLY)) >= 0;)
        me->fillers[me->filled++] = file;
}

static void give_files(member *me)
{
    setrlimit(RLIMIT_NOFILE, &me->files);
    while (me->filled)
        close(me->fillers[--me->filled]);
}

static int finish(member *me)
{
    kvferry_status drained = kvferry_node_drain(me->worker.node, 10000);
    worker_close(&me->worker);
    return drained == KVFERRY_OK ? 0 : 1;
}

static void obey(member *me, const order *in)
{
    rlim_t end;
    switch (in->kind) {
    case ORDER_OFFER:
    case ORDER_PARK:
    case ORDER_ASK:
        take(me, in);
        break;
    case ORDER_READY:
        make_ready(me, in->request);
        break;
    case ORDER_RENEW:
        renew(me, in->request);
        break;
    case ORDER_CHECK:
        for (uint32_t i = 0; i < SLOTS; i++)
            check_slot(me, i);
        say(TELL_CHECKED, 0, descriptors(&end), "");
        break;
    case ORDER_NO_FILES:
        take_files(me);
        say(TELL_DONE, 0, me->filled, "");
        break;
    case ORDER_FILES:
        give_files(me);
        say(TELL_DONE, 0, 0, "");
        break;
    case ORDER_TRAP:
        trap_set(in->traps);
        say(TELL_DONE, 0, 0, "");
        break;
    case ORDER_LEAVE:
        worker_close(&me->worker);
        exit(0);
    case ORDER_CLOSE:
        exit(finish(me));
    }
}

static void pass_on(member *me, const kvferry_event *event)
{
    uint32_t request = 0, blocks[SLOT_BLOCKS];
    if (event->kind == KVFERRY_EVENT_CONNECTED || event->kind == KVFERRY_EVENT_DISCONNECTED)
        return;
    sscanf(event->transfer_id, "r%u", &request);
    slot *at = slot_of(me, request);
    if (!at) {
        say(TELL_WRONG, request, 0, "an event of a request that was released");
        return;
    }
    uint32_t number = (uint32_t)(at - me->slots);
    blocks_in(number, blocks);
    if (event->kind == KVFERRY_EVENT_ENDED) {
        if (me->setup.decode && event->outcome == KVFERRY_OUTCOME_DONE &&
            !walk_cells(&me->worker, blocks, SLOT_TOKENS, request, false))
            say(TELL_WRONG, request, 0, "a transfer is done, but its bytes are wrong");
        say(TELL_ENDED, request, (uint64_t)event->outcome, event->code);
        return;
    }
    own(me, number, true);
    at->owned = true;
    say(TELL_RELEASED, request, 0, "");
}

/* --- life ------------------------------------------------------------------------------------- */

static bool enter(const char *space)
{
    char path[128];
    snprintf(path, sizeof(path), "/var/run/netns/%s", space);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool entered = file >= 0 && setns(file, CLONE_NEWNET) == 0;
    if (file >= 0)
        close(file);
    return entered;
}

static void open_member(member *me)
{
    static char name[16];
    const setup *how = &me->setup;
    snprintf(name, sizeof(name), "%s%u", how->decode ? "decode" : "prefill", how->tp);
    kvferry_engine_options engine = {.size = sizeof(engine), .transport = how->transport};
    if (*how->device)
        engine.net_devices = how->device;
    kvferry_node_options options = nodes_options(name);
    options.engine = "ucx";
    options.engine_options = &engine;
    options.listen = how->address;
    options.leader = *how->leader ? how->leader : NULL;
    options.insecure = *how->space;
    options.retry_ms = 100;
    options.silence_ms = 1200;
    options.linger_ms = 200;
    options.early_ms = 500;
    options.connect_ms = 8000;
    options.lease_ms = 4000;
    options.verify = how->verify;
    worker_open(&me->worker,
                &(rig_shape){
                    .engine_id = how->decode ? "d" : "p", .tp = how->tp, .tps = how->tps, .pps = 1},
                &options);
    for (uint32_t i = 0; i < SLOTS; i++) {
        own(me, i, true);
        me->slots[i].owned = true;
    }
    getrlimit(RLIMIT_NOFILE, &me->files);
    say(TELL_OPEN, 0, 0, kvferry_node_address(me->worker.node));
}

int member_main(void)
{
    static member me;
    order in;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (recv(CHANNEL, &me.setup, sizeof(me.setup), 0) != sizeof(me.setup))
        return 1;
    if (*me.setup.space && !enter(me.setup.space))
        return 1;
    open_member(&me);
    for (;;) {
        struct pollfd files[] = {{.fd = CHANNEL, .events = POLLIN},
                                 {.fd = kvferry_node_fd(me.worker.node), .events = POLLIN}};
        if (poll(files, 2, -1) < 0)
            return 1;
        kvferry_event *event;
        while ((event = kvferry_node_next_event(me.worker.node))) {
            pass_on(&me, event);
            kvferry_event_free(event);
        }
        if (!files[0].revents)
            continue;
        if (recv(CHANNEL, &in, sizeof(in), 0) != sizeof(in))
            return 1;
        obey(&me, &in);
    }
}
