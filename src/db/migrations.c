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

static const char *const steps[] = {models_1};

int db_migration_count(void)
{
    return (int)(sizeof steps / sizeof steps[0]);
}

const char *db_migration(int i)
{
    return steps[i];
}
