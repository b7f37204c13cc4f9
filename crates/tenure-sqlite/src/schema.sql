-- One table for every object. Column names are those of the documents' table where it had them;
-- `resource_version` is the contract's `version`, `object_type` its kind.
CREATE TABLE objects (
  object_type      TEXT    NOT NULL,
  id               TEXT    NOT NULL,
  name             TEXT,
  payload          BLOB    NOT NULL,
  labels           TEXT    NOT NULL DEFAULT '{}',
  created_at_ms    INTEGER NOT NULL,
  updated_at_ms    INTEGER NOT NULL,
  resource_version INTEGER NOT NULL DEFAULT 1,
  revision         INTEGER NOT NULL,
  created_revision INTEGER NOT NULL,
  token            INTEGER NOT NULL,
  ttl_ms           INTEGER,
  expires_at_ms    INTEGER/*EXTRA*/,
  PRIMARY KEY (object_type, id)
);
CREATE UNIQUE INDEX tenure_objects_name ON objects (object_type, name) WHERE name IS NOT NULL;
CREATE INDEX tenure_objects_expiry ON objects (expires_at_ms) WHERE expires_at_ms IS NOT NULL;

-- What happened, for watchers: a row for all that one transaction did, called after its last
-- revision, so that appending is all it ever does. body: the changes in order (src/history.rs).
CREATE TABLE tenure_history (
  revision    INTEGER PRIMARY KEY,
  recorded_ms INTEGER NOT NULL,
  body        BLOB    NOT NULL
);

-- One row: the counter, how far history reaches, who may write, and the store's clock.
CREATE TABLE tenure_meta (
  one                INTEGER PRIMARY KEY CHECK (one = 1),
  schema_version     INTEGER NOT NULL,
  min_writer         INTEGER NOT NULL,
  revision           INTEGER NOT NULL,
  compacted_revision INTEGER NOT NULL,
  boot_id            TEXT    NOT NULL,
  offset_ms          INTEGER NOT NULL,
  last_ms            INTEGER NOT NULL
);

-- Programs that know nothing of versions must not write here: they would overwrite what others
-- changed. The database itself turns them away, whatever they check.
CREATE TRIGGER tenure_guard_insert BEFORE INSERT ON objects WHEN NEW.revision IS NULL
BEGIN SELECT RAISE(ABORT, 'this database is written by Tenure; a program without versioned writes must be upgraded first'); END;
CREATE TRIGGER tenure_guard_update BEFORE UPDATE OF payload, labels, resource_version ON objects
WHEN NEW.revision IS NULL OR NEW.revision <= OLD.revision
BEGIN SELECT RAISE(ABORT, 'this database is written by Tenure; a program without versioned writes must be upgraded first'); END;
-- A delete carries no version, so it is known by a function that only Tenure's connections have;
-- without it the statement does not even compile.
CREATE TRIGGER tenure_guard_delete BEFORE DELETE ON objects WHEN NOT tenure_requires_versioned_writer()
BEGIN SELECT RAISE(ABORT, 'this database is written by Tenure; a program without versioned writes must be upgraded first'); END;
