/* db/migrations.h - the schema of the database, one step a version.
 *
 * Version n of a file is made from version n - 1 by migration n - 1 of the list. A step that was
 * released is never edited: a change is a new step at the end. */
#ifndef DB_MIGRATIONS_H
#define DB_MIGRATIONS_H

int db_migration_count(void);
const char *db_migration(int i); /* SQL text, borrowed; 0 <= i < db_migration_count() */
#endif
