#include "db/migrations.h"

/* AUTOINCREMENT: an id is never given out twice, also after its row was deleted. */
static const char models_1[] =
    "CREATE TABLE models ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  name TEXT NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 255),"
    "  source TEXT NOT NULL CHECK (source IN ('huggingface', 'local')),"
    "  repo_id TEXT,"
    "  local_path TEXT UNIQUE,"
    "  params TEXT,"
    "  architecture TEXT,"
    "  quantization TEXT NOT NULL,"
    "  revision TEXT,"
    "  error_message TEXT,"
    "  disk_size_mb INTEGER,"
    "  estimated_memory_mb INTEGER,"
    "  download_progress INTEGER NOT NULL DEFAULT 100,"
    "  created_ms INTEGER NOT NULL,"
    "  updated_ms INTEGER NOT NULL,"
    "  loaded_ms INTEGER,"
    "  status TEXT NOT NULL"
    "    CHECK (status IN ('downloading', 'ready', 'loading', 'loaded', 'error')),"
    "  locked INTEGER NOT NULL DEFAULT 0 CHECK (locked IN (0, 1)),"
    "  trust_remote_code INTEGER NOT NULL DEFAULT 0 CHECK (trust_remote_code IN (0, 1)),"
    "  supports_embeddings INTEGER NOT NULL DEFAULT 0 CHECK (supports_embeddings IN (0, 1)),"
    "  checkpoint INTEGER NOT NULL DEFAULT 0 CHECK (checkpoint IN (0, 1)),"
    "  CHECK (checkpoint = 0 OR (source = 'local' AND local_path IS NOT NULL))"
    ");"
    "CREATE UNIQUE INDEX models_repo ON models (repo_id, quantization) WHERE repo_id IS NOT NULL;";

/* Times are whole Unix seconds. A deleted or expired file keeps its row for a while, so that its
 * users learn what became of it. */
static const char batches_2[] =
    "CREATE TABLE files ("
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  id TEXT NOT NULL UNIQUE,"
    "  purpose TEXT NOT NULL CHECK (purpose IN ('batch', 'batch_output')),"
    "  filename TEXT NOT NULL,"
    "  bytes INTEGER NOT NULL,"
    "  sha256 TEXT,"
    "  status TEXT NOT NULL CHECK (status IN ('processed', 'error', 'deleted', 'expired')),"
    "  created_s INTEGER NOT NULL,"
    "  expires_s INTEGER NOT NULL,"
    "  ended_s INTEGER"
    ");"
    "CREATE TABLE batches ("
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  id TEXT NOT NULL UNIQUE,"
    "  status TEXT NOT NULL CHECK (status IN ('validating', 'in_progress', 'finalizing',"
    "    'cancelling', 'completed', 'failed', 'expired', 'cancelled')),"
    "  endpoint TEXT NOT NULL,"
    "  input_file_id TEXT NOT NULL,"
    "  window_hours INTEGER NOT NULL,"
    "  metadata TEXT,"
    "  pack INTEGER NOT NULL CHECK (pack IN (0, 1)),"
    "  output_expires_s INTEGER,"
    "  model TEXT,"
    "  model_row INTEGER,"
    "  load_counter INTEGER,"
    "  boot TEXT," /* of the process that the load counter belongs to */
    "  errors TEXT,"
    "  output_file_id TEXT NOT NULL,"
    "  error_file_id TEXT NOT NULL,"
    "  created_s INTEGER NOT NULL,"
    "  in_progress_s INTEGER,"
    "  expires_s INTEGER NOT NULL,"
    "  finalizing_s INTEGER,"
    "  completed_s INTEGER,"
    "  failed_s INTEGER,"
    "  expired_s INTEGER,"
    "  cancelling_s INTEGER,"
    "  cancelled_s INTEGER,"
    "  total INTEGER NOT NULL DEFAULT 0,"
    "  completed INTEGER NOT NULL DEFAULT 0,"
    "  failed INTEGER NOT NULL DEFAULT 0,"
    "  next_offset INTEGER NOT NULL DEFAULT 0," /* first line without a recorded result */
    "  next_line INTEGER NOT NULL DEFAULT 1,"
    "  output_bytes INTEGER NOT NULL DEFAULT 0," /* recorded part of the two result files */
    "  error_bytes INTEGER NOT NULL DEFAULT 0"
    ");"
    "CREATE INDEX batches_open ON batches (seq) WHERE status IN ('validating', 'in_progress',"
    "  'finalizing', 'cancelling');"
    "CREATE TABLE batch_bad_lines ("
    "  batch INTEGER NOT NULL REFERENCES batches (seq) ON DELETE CASCADE,"
    "  line INTEGER NOT NULL,"
    "  text TEXT NOT NULL," /* the line of the error file */
    "  PRIMARY KEY (batch, line)"
    ") WITHOUT ROWID;";

static const char *const steps[] = {models_1, batches_2};

int db_migration_count(void)
{
    return (int)(sizeof steps / sizeof steps[0]);
}

const char *db_migration(int i)
{
    return steps[i];
}
