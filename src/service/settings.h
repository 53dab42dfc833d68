/* service/settings.h - every setting of the server as a value, read once at start
 * (daemon/config.c). */
#ifndef SERVICE_SETTINGS_H
#define SERVICE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum barrier_rule { BARRIER_ALL, BARRIER_SINGLE };
enum shm_transport { SHM_AUTO, SHM_POSIX, SHM_MEMFD };

struct settings {
    /* listening */
    const char *host;
    int port;
    const char *cors_origins;  /* "*" or a comma list */
    const char *allowed_hosts; /* comma list of further Host values */
    bool needs_token; /* beyond loopback: every route that changes something needs a token */
    /* directories */
    const char *state_dir;
    const char *model_cache_dir;
    const char *checkpoint_dir;
    const char *read_roots;  /* comma list, "" for none */
    const char *schema_file; /* or NULL: built in */
    const char *auto_load;   /* AUTO_LOAD_MODEL, or NULL */
    /* weights */
    double save_free_space_factor;
    int64_t save_overhead_mb;
    int64_t lineage_max_depth;
    double quiesce_max_hold_s;
    double commit_watchdog_s;
    double heartbeat_timeout_s;
    double drain_timeout_s;
    double hold_request_timeout_s;
    double graceful_unload_timeout_s;
    double stop_s; /* CAIRN_STOP_S: for which a stop waits for saves that write */
    enum shm_transport shm_transport;
    int shm_mode;          /* 0600 */
    const char *shm_group; /* or NULL */
    gid_t shm_gid;         /* of shm_group, looked up at the start */
    bool load_prefetch;
    enum barrier_rule barrier;
    const char *adapter_dir; /* or NULL: no adapters */
    /* training API */
    const char *weaver_dir; /* WEAVER_CHECKPOINT_DIR */
    int weaver_max_ops;     /* WEAVER_MAX_OPERATIONS: of one identity that have not ended */
    const char *public_url; /* PUBLIC_URL: begin of download links; NULL: the request's Host */
    int64_t max_pack_mb;    /* CAIRN_MAX_PACK_MB: a tensor pack, decoded */
    int64_t memory_mb;      /* CAIRN_MEMORY_MB: images kept for runs and samplers; 0: 80 % */
    int train_share;        /* CAIRN_TRAIN_SHARE: percent of the time while requests run */
    int64_t train_mb;       /* CAIRN_TRAIN_MB: activations of a pass; 0: a third of what is free */
    bool master_forward;    /* CAIRN_TRAIN_FORWARD=master */
    bool step_log;          /* CAIRN_STEP_LOG: the data of training operations are kept too */
    /* leases */
    int lease_default_ttl_s, lease_max_ttl_s;
    int lease_holder_max_chars, lease_reason_max_chars;
    int lease_ended_memory;
    /* engine */
    int max_concurrent; /* request slots */
    int max_pending;
    int queue_duration_window; /* requests whose times of a slot estimate the wait */
    bool continuous_batching;
    int threads;          /* 0: all */
    int background_share; /* CAIRN_BACKGROUND_SHARE: percent of a step that a core is away */
    int64_t kv_mb;        /* 0: a quarter of what is free after the load */
    int max_images;
    bool fast_numerics;  /* CAIRN_NUMERICS=fast */
    const char *kernels; /* CAIRN_KERNELS: "" the best of this CPU, else the name of a table */
    /* files and batches */
    const char *batch_files_dir;
    int batch_max_rows;
    int64_t batch_max_file_bytes, batch_max_line_bytes;
    int batch_chunk_rows;
    int batch_max_window_h, batch_retention_days;
    int batch_lease_ttl_s, batch_errors_shown;
    double batch_wait_poll_s, batch_retention_interval_s;
    bool batch_pack_default;
    /* answers */
    int embeddings_max_inputs;
    int ignored_fields_max_bytes;
    double request_timeout_s; /* CAIRN_REQUEST_TIMEOUT_S; 0: none */
    int retry_queue_default_s, retry_queue_max_s, retry_load_s, retry_unload_s, retry_not_loaded_s;
    int retry_memory_s, retry_readiness_s, retry_fallback_s, retry_torn_s;
};
#endif
