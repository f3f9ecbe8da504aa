/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_NODE_H
#define KVFERRY_NODE_H

#include <kvferry/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A node is what a running worker embeds: it owns the engine, the peers and the life of each transfer.
 * A prefill worker offers the blocks of a request; a decode worker asks for them; the prefill worker writes
 * them into the decode worker's segments. docs/protocol.md has the messages and the states.
 *
 * A node has a thread of its own. Every function may be called from any thread, and none blocks longer
 * than it says here. There are no callbacks but the log's; what happens is told in events, which the
 * caller takes when it likes.
 *
 * How long a call takes. Where nothing else is said, a function that is given a node takes the node's lock and waits
 * for nothing else: not for a peer, the network, a file, the engine, or a lookup of a name. The thread holds the lock
 * for a turn at most, and lets who waits for it go first. In a turn it does at most about 0.2 ms of what takes long, and
 * ends the part that it is at: expands one slice of a request (at most 8,192 copies, or one block), makes checksums of
 * one slice of a piece (at most 512 KiB, or one block), makes one plan of a handshake; and reads messages of 64 KiB
 * together, or one. What it cannot cut grows with the message or the call: a block table is checked and copied at
 * once, at most max_message_bytes of it; a layout document is read at once. Other calls hold the lock for as long as they
 * need themselves: offer and ask for their block tables, status for all peers and transfers.
 * The functions that tell addresses, descriptors and memory, and the statistics, take no lock.
 */
typedef struct kvferry_node kvferry_node;

/* --- life ------------------------------------------------------------------------------------ */

typedef enum kvferry_log_level {
    KVFERRY_LOG_ERROR = 0,
    KVFERRY_LOG_WARNING = 1,
    KVFERRY_LOG_INFO = 2,
    KVFERRY_LOG_DEBUG = 3
} kvferry_log_level;

/* Gets one line without its end, valid during the call. Called by the node's thread, without a lock. */
typedef void (*kvferry_log)(void *context, kvferry_log_level level, const char *line);

/*
 * Set `size` to sizeof(kvferry_node_options); a zero field is the default. All strings are copied.
 * Addresses are "tcp://HOST:PORT" with an IPv6 host in brackets; port 0: any free one. With keys, the
 * address of a node has its public key behind it: "tcp://HOST:PORT/64 HEXADECIMAL DIGITS".
 */
typedef struct kvferry_node_options {
    size_t size;

    /* Where. */
    const char *listen;    /* control messages; default "tcp://127.0.0.1:0" */
    const char *advertise; /* what peers are told; default: the bound address. Needed where `listen`
                              names no single host */
    const char *leader;    /* control address of the engine's first worker (lowest dp, pp, tp). Needed by
                              every other worker of an engine of several, unless `bootstrap` finds it or
                              kvferry_node_set_leader tells it later */
    const char *bootstrap_listen; /* "HOST:PORT": serve /register and /query here, as vLLM's Mooncake
                                     bootstrap server does; default: do not */
    const char *bootstrap; /* "http://HOST:PORT" of the own engine's bootstrap server: register there */
    uint32_t bootstrap_rank; /* the dp_rank to register as, where each rank is an engine of its own and they
                                share a bootstrap server; used if the layout's dp_size is 1 */
    const char *metrics_listen; /* "HOST:PORT": serve /metrics for Prometheus; default: do not */

    /* What moves the bytes: as kvferry_engine_open takes them. Where their `host` is "", it is that of `listen`, or,
     * where that names no single host, of `advertise`; if that cannot be looked up yet, is at no interface of this host,
     * or is a name of a loopback address, a warning says so, and it stays "". */
    const char *engine; /* default "ucx" */
    const kvferry_engine_options *engine_options;

    /* Who may talk. */
    const char *key_file;     /* the node's own key pair (kvferry_keys_generate): switches CURVE on */
    const char *allowed_keys; /* file of peers' public keys, one a line; needed with key_file. The own key always counts */
    bool insecure;            /* without keys only loopback addresses are served, unless this is set */

    /* Time, in milliseconds. */
    uint64_t lease_ms;    /* how long offered blocks are held; default 480,000 */
    uint64_t transfer_ms; /* from ask to its end, where the ask names no time; default 120,000 */
    uint64_t connect_ms;  /* a handshake with a whole engine; default 30,000 */
    uint64_t early_ms;    /* how long an ask waits for an offer of which nothing is known; default 5,000 */
    uint64_t retry_ms;    /* until a message without an answer is sent again; default 1,000 */
    uint64_t silence_ms;  /* a peer that says nothing for so long is lost; default 30,000 */
    uint64_t linger_ms;   /* what a dead writer sent may still arrive for so long; default 1,000 */
    uint64_t remember_ms; /* how long the end of a transfer is remembered; default 600,000 */

    /* Limits. */
    uint32_t max_transfers;    /* of each side, that have not been released; default 65,536 */
    uint32_t max_peers;        /* workers of other engines; default 4,096. One key may have them all, until others
                                  come: then who has most loses some. Leave room for twice as many as there are */
    uint64_t max_peer_copies;  /* expanded and not yet done, to one peer; default 1,048,576. A request of more
                                  moves a part at a time; one block must fit */
    uint64_t max_message_bytes;/* default 16 MiB */

    bool verify; /* asks carry it: checksums of what the sources hold are compared with what arrived */

    kvferry_log log; /* default: none */
    void *log_context;
    kvferry_log_level log_level; /* lines above it are not made; default errors only */
} kvferry_node_options;

/* Memory of the layout's segment of the same index. */
typedef struct kvferry_node_segment {
    void *address; /* NULL: the engine allocates it (host memory, zeroed) */
    kvferry_memory memory;
} kvferry_node_segment;

/*
 * Takes as long as the engine's opening and registering do, and the reading of files and of the name in `listen`, or,
 * where that names no single host and the engine's options name none, in `advertise`.
 * Opens the engine, registers the segments (as many as the layout has, each of the size that it says), binds
 * the addresses and starts the thread. The layout may be freed afterwards; the memory must stay until
 * kvferry_node_close. KVFERRY_INVALID, KVFERRY_REFUSED (an address that is not loopback, without keys), KVFERRY_IO
 * (an address that cannot be bound, a file that cannot be read), and the statuses of the engine's calls, each with
 * its reasons.
 */
KVFERRY_API kvferry_status kvferry_node_create(const kvferry_node_options *options,
                                               const kvferry_layout *layout,
                                               const kvferry_node_segment *segments,
                                               size_t segment_count, kvferry_node **node,
                                               kvferry_report *report);

/*
 * Takes no new offers and asks (KVFERRY_REFUSED, "node_closing") and waits until all transfers are released,
 * at most `timeout_ms`: KVFERRY_TIMEOUT then.
 */
KVFERRY_API kvferry_status kvferry_node_drain(kvferry_node *node, uint64_t timeout_ms);

/*
 * Tells peers, tears all down, stops the thread, frees the node; NULL is fine. Events that were not taken are
 * lost. The segments' memory may be written by a peer for as long as a transfer into it was not released: drain first.
 * No other call may run or follow. Peers do not take this node for dead before all of its writes have ended.
 *
 * Takes up to a second where nothing is written. Else it waits for the writes under way (no more are begun), to all peers
 * at once: as long as one of them ends at least each second. Of a peer that is silent for a second the connection is then
 * torn down, which "ucx" does at once without UCX's endpoints, and with them in five seconds for all peers together. An
 * engine that `lingers` waits until all is over.
 */
KVFERRY_API void kvferry_node_close(kvferry_node *node);

/* The address of a segment's memory; NULL past the end. */
KVFERRY_API void *kvferry_node_segment_address(const kvferry_node *node, uint32_t segment);

/* What the node is reached by: bound addresses, with their ports. "" where it does not serve that.
 * They belong to the node. */
KVFERRY_API const char *kvferry_node_address(const kvferry_node *node);   /* control: advertised */
KVFERRY_API const char *kvferry_node_bootstrap(const kvferry_node *node); /* "http://HOST:PORT" */
KVFERRY_API const char *kvferry_node_metrics(const kvferry_node *node);   /* "http://HOST:PORT" */

/* The number that tells this node from any other that had or will have its address: 16 hexadecimal
 * digits. Belongs to the node. */
KVFERRY_API const char *kvferry_node_incarnation(const kvferry_node *node);

/* Tells a worker that is not the engine's first one where that is. KVFERRY_INVALID; KVFERRY_REFUSED: an address that
 * this node may not talk to (address_insecure, address_key). */
KVFERRY_API kvferry_status kvferry_node_set_leader(kvferry_node *node, const char *address,
                                                   kvferry_report *report);

/* --- peers ------------------------------------------------------------------------------------ */

/*
 * Begins a handshake with all workers of an engine. `where`: the control address of any of its workers, the
 * "http://HOST:PORT" of its bootstrap server, or "file:PATH" of a JSON file of the shape that /query answers.
 * `engine_id` "": whatever engine is there (with a bootstrap server: its only one). Ends with an event CONNECTED, or
 * one DISCONNECTED that says why. An ask does it by itself; doing it before spares the first request the time.
 */
KVFERRY_API kvferry_status kvferry_node_connect(kvferry_node *node, const char *engine_id,
                                                const char *where, kvferry_report *report);

/*
 * The operator's word that a worker is dead and writes nothing any more: what only its confirmation
 * could release is released. `incarnation`: as events, logs and the status show it. A wrong word here lets late
 * writes reach blocks that have new owners. KVFERRY_NOT_FOUND.
 */
KVFERRY_API kvferry_status kvferry_node_declare_dead(kvferry_node *node, const char *incarnation,
                                                     kvferry_report *report);

/* --- prefill: offering ------------------------------------------------------------------------- */

/*
 * Says that a request of this id will be offered: asks for it wait, for a lease at most, instead of being
 * refused after `early_ms`. Optional. KVFERRY_REFUSED: the id is known ("transfer_known") or is over
 * ("transfer_over"), or there are too many ("too_many_transfers").
 */
KVFERRY_API kvferry_status kvferry_node_expect(kvferry_node *node, const char *transfer_id,
                                               kvferry_report *report);

typedef enum kvferry_readiness {
    KVFERRY_NOT_READY = 0, /* kvferry_node_ready will follow; nothing is sent before */
    KVFERRY_READY = 1      /* the step that wrote the blocks is complete on the device */
} kvferry_readiness;

/* Set `size` to sizeof(kvferry_offer). Everything is copied. */
typedef struct kvferry_offer {
    size_t size;
    const char *transfer_id; /* unique over the engine's life; at most 255 bytes */
    uint64_t tokens;         /* how many the state covers */
    const kvferry_block_table *tables; /* of all groups of the engine that the request has blocks in */
    size_t table_count;
    kvferry_readiness readiness;
    void *context; /* given back in events */
} kvferry_offer;

/*
 * Offers a request's blocks. They must not change or be freed until the event RELEASED of this transfer,
 * which comes in any case: when all decode workers that get something from here have settled, on abort, or at the end of
 * the lease. Every worker of a prefill engine offers the same request, also one that has nothing to send.
 * KVFERRY_REFUSED with every reason: the id is known or over, a block that the layout has not (block_range), ...
 */
KVFERRY_API kvferry_status kvferry_node_offer(kvferry_node *node, const kvferry_offer *offer,
                                              kvferry_report *report);

/* The blocks of an offer that was not ready are written. KVFERRY_NOT_FOUND. */
KVFERRY_API kvferry_status kvferry_node_ready(kvferry_node *node, const char *transfer_id);

/* --- decode: asking ------------------------------------------------------------------------------ */

/* Set `size` to sizeof(kvferry_ask). Everything is copied. */
typedef struct kvferry_ask {
    size_t size;
    const char *transfer_id;
    const char *engine_id; /* of the prefill engine; "": the one that `where` leads to */
    const char *where;     /* as in kvferry_node_connect; may be "" if the engine is connected */
    uint64_t tokens;       /* how many are wanted in the end */
    const kvferry_block_table *tables; /* where they go; none: only release the prefill side's blocks */
    size_t table_count;
    uint64_t timeout_ms; /* 0: the node's transfer_ms */
    void *context;       /* given back in events */
    bool whole_blocks;   /* as in kvferry_request: for engines that cache prefixes by whole blocks */
    bool allow_part;     /* with whole_blocks: a source that does not hold all of what comes before a window in its first
                            block moves nothing of that, instead of failing; the event's `part` says so */
} kvferry_ask;

/*
 * Asks for a request's blocks. The blocks named in `tables` belong to the node until the event RELEASED of
 * this transfer. Every worker of a decode engine asks for the same request, also one that gets nothing and one
 * whose request is a full prefix hit (then with no tables): only so are the prefill side's blocks released.
 * KVFERRY_REFUSED with every reason: block_range, null blocks as targets of state, blocks that another ask which is not
 * released owns (block_owned), the id is known or over, no such engine, ...
 * With `whole_blocks` and tables it ends with message_version if a prefill worker is too old to know of it.
 */
KVFERRY_API kvferry_status kvferry_node_ask(kvferry_node *node, const kvferry_ask *ask,
                                            kvferry_report *report);

/*
 * Prolongs the lease of an offer that this side has not asked for yet by the prefill side's lease_ms.
 * What is asked for needs no renewal: the ask's timeout holds the lease. The engine must be connected:
 * KVFERRY_NOT_FOUND. It is not repeated if it gets lost, or meets a side that has forgotten this one, which makes the two
 * shake hands again: renew more than once in a lease.
 */
KVFERRY_API kvferry_status kvferry_node_renew(kvferry_node *node, const char *engine_id,
                                              const char *transfer_id, kvferry_report *report);

/* --- both sides ------------------------------------------------------------------------------------ */

typedef enum kvferry_side {
    KVFERRY_SIDE_PREFILL = 0, /* this node offered it */
    KVFERRY_SIDE_DECODE = 1   /* this node asked for it */
} kvferry_side;

/*
 * Ends a transfer: the event ENDED comes at once (aborted), RELEASED when nothing is written any more.
 * Peers are told. What is only expected (kvferry_node_expect) ends too, without events: whoever asks
 * for it fails at once. KVFERRY_NOT_FOUND: there is none that has not ended.
 */
KVFERRY_API kvferry_status kvferry_node_abort(kvferry_node *node, kvferry_side side,
                                              const char *transfer_id);

typedef enum kvferry_event_kind {
    KVFERRY_EVENT_CONNECTED = 0,    /* all workers of engine_id shook hands; plans are made */
    KVFERRY_EVENT_DISCONNECTED = 1, /* a handshake failed, or workers of the engine are gone */
    KVFERRY_EVENT_ENDED = 2,        /* a transfer's one terminal event of this side */
    KVFERRY_EVENT_RELEASED = 3      /* its blocks may be used again; always after ENDED, once */
} kvferry_event_kind;

typedef enum kvferry_outcome {
    KVFERRY_OUTCOME_DONE = 0,   /* decode: every wanted byte is there, but for `part`. prefill: all have settled, all well */
    KVFERRY_OUTCOME_FAILED = 1, /* see code and report; the target blocks' contents are undefined */
    KVFERRY_OUTCOME_ABORTED = 2,
    KVFERRY_OUTCOME_EXPIRED = 3 /* the deadline or the lease ended */
} kvferry_outcome;

/* "done", "failed", "aborted", "expired"; never NULL. Static storage. */
KVFERRY_API const char *kvferry_outcome_name(kvferry_outcome outcome);

/* Strings are never NULL; all belong to the event. */
typedef struct kvferry_event {
    kvferry_event_kind kind;
    kvferry_side side;        /* of a transfer */
    const char *engine_id;    /* the peer engine; "" where several or none are concerned */
    const char *transfer_id;  /* "" unless about a transfer */
    kvferry_outcome outcome;  /* ENDED and RELEASED */
    const char *code;         /* why not done: the first reason's code; "" if done */
    const kvferry_report *report; /* all reasons; empty if done */
    uint64_t bytes, copies;   /* ENDED: what this node sent, or got */
    uint64_t elapsed_ns;      /* ENDED: since the offer or the ask; RELEASED: since ENDED */
    void *context;            /* of the offer or ask */
    bool part;                /* ENDED of the decode side, done: the ask had whole_blocks and allow_part, and a source did not
                                 hold what comes before a window in its first block. What is there of it is undefined; what
                                 the windows themselves want is there. Such a block must not get into a prefix cache */
} kvferry_event;

/* The next event, or NULL: none; does not wait for one. The caller frees it. Events of one transfer come in order. */
KVFERRY_API kvferry_event *kvferry_node_next_event(kvferry_node *node);
KVFERRY_API void kvferry_event_free(kvferry_event *event);

/* A descriptor that is readable while there are events to take; for poll, epoll, asyncio. It belongs to the
 * node; nobody else may read from it. */
KVFERRY_API int kvferry_node_fd(const kvferry_node *node);

/* Waits until there is an event, at most `timeout_ms`: KVFERRY_TIMEOUT then. */
KVFERRY_API kvferry_status kvferry_node_wait(kvferry_node *node, uint64_t timeout_ms);

/* --- looking -------------------------------------------------------------------------------------- */

/* Counts since the node was created, and what is now. */
typedef struct kvferry_node_statistics {
    uint64_t ended[2][4];   /* transfers by side and outcome */
    uint64_t bytes[2], copies[2]; /* sent, received */
    uint64_t transfer_ns[2];/* sum of the times from offer or ask to the end */
    uint64_t live[2];       /* transfers not ended: offers are the leases that are held */
    uint64_t unreleased[2]; /* ended, but not released */
    uint64_t quarantined_blocks; /* target blocks of ended asks that are not released */
    uint64_t unsettled;     /* asks that are released, whose sources have not all answered how they ended */
    uint64_t queued_copies; /* expanded, not yet written */
    uint64_t peers;         /* workers that are connected */
    uint64_t messages_in, messages_out, message_bytes_in, message_bytes_out;
    uint64_t malformed;     /* messages that could not be read */
    uint64_t ignored;       /* late, repeated and unknown ones */
    uint64_t refused;       /* asks and handshakes that were refused, either side */
    uint64_t refused_keys;  /* connections of peers whose keys are not allowed */
    uint64_t events_waiting;
} kvferry_node_statistics;

/* Reads them without waiting for anything. */
KVFERRY_API void kvferry_node_get_statistics(const kvferry_node *node,
                                             kvferry_node_statistics *statistics);

/*
 * The node's state for a person or a monitor as JSON (docs/command.md, `status`): addresses, peers, transfers,
 * quarantine, counters. *text is the caller's, for kvferry_free. KVFERRY_NO_MEMORY.
 */
KVFERRY_API kvferry_status kvferry_node_status(const kvferry_node *node, char **text, size_t *size);

/* The same of a node elsewhere, over its control address. Waits at most `timeout_ms`: KVFERRY_TIMEOUT.
 * Where the host answers that nobody listens: KVFERRY_IO, at once. Addresses of a name are tried in turn, in that
 * time; what the system takes to look the name up comes to it.
 * `key_file`: a key pair that the node allows, or its own; NULL or "": without keys. */
KVFERRY_API kvferry_status kvferry_node_query(const char *address, const char *key_file,
                                              uint64_t timeout_ms, char **text, size_t *size,
                                              kvferry_report *report);

/* What is released by the word that a worker is dead, once its last bytes were waited for (linger_ms). */
typedef struct kvferry_declared {
    uint64_t transfers; /* asks that have ended, and wait for no other worker that may write */
    uint64_t blocks;    /* of these */
    uint64_t waiting;   /* asks that wait for other workers too, and so are not released */
} kvferry_declared;

/*
 * kvferry_node_declare_dead at a node elsewhere. It takes the word only of its own operator: with keys, of who has the
 * node's own key pair in `key_file`; without, of processes on its own host. Waits at most `timeout_ms`: KVFERRY_TIMEOUT.
 * KVFERRY_NOT_FOUND: the node knows no such worker. KVFERRY_REFUSED (not_operator), KVFERRY_INVALID, KVFERRY_IO.
 */
KVFERRY_API kvferry_status kvferry_node_declare_dead_at(const char *address, const char *key_file,
                                                        const char *incarnation, uint64_t timeout_ms,
                                                        kvferry_declared *declared, kvferry_report *report);

/* Whether a text has the form of a control address, "tcp://HOST:PORT" or "tcp://HOST:PORT/KEY". No I/O; any thread.
 * KVFERRY_INVALID, with address_malformed. */
KVFERRY_API kvferry_status kvferry_node_check_address(const char *address, kvferry_report *report);

/* --- keys ------------------------------------------------------------------------------------------- */

/* Writes a new CURVE key pair to `path` (mode 0600) and its public key alone to `path`.pub. An existing file is
 * not overwritten: KVFERRY_IO. */
KVFERRY_API kvferry_status kvferry_keys_generate(const char *path, kvferry_report *report);

#ifdef __cplusplus
}
#endif
#endif
