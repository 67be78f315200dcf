CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
CREATE TABLE ledger_rejudgements (
    project_id VARCHAR(200) NOT NULL,
    digest BLOB NOT NULL,
    request BLOB NOT NULL,
    score DOUBLE NOT NULL,
    probability DOUBLE,
    menu_mass DOUBLE,
    step INTEGER,
    grade DOUBLE,
    rationale TEXT,
    CONSTRAINT pk_ledger_rejudgements PRIMARY KEY (project_id, digest, request)
)
 WITHOUT ROWID

CREATE TABLE ledger_requests (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    request BLOB NOT NULL,
    request_id TEXT NOT NULL,
    step BIGINT,
    mode TEXT,
    protocol TEXT NOT NULL,
    fingerprint TEXT,
    model TEXT,
    votes INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    judge_calls INTEGER NOT NULL,
    tokens_computed BIGINT NOT NULL,
    tokens_reused BIGINT NOT NULL,
    tokens_written BIGINT NOT NULL,
    seconds DOUBLE NOT NULL,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_ledger_requests PRIMARY KEY (project_id, run, request)
)
CREATE INDEX ix_ledger_requests_created_at ON ledger_requests (project_id, created_at)
CREATE TABLE ledger_responses (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    request BLOB NOT NULL,
    place INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    rubric BLOB,
    prompt BLOB NOT NULL,
    response BLOB NOT NULL,
    grounding BLOB,
    tokens BIGINT,
    stopped BOOLEAN,
    format_ok BOOLEAN NOT NULL,
    spans TEXT,
    reward DOUBLE,
    status TEXT,
    CONSTRAINT pk_ledger_responses PRIMARY KEY (project_id, run, request, place)
)
 WITHOUT ROWID

CREATE TABLE ledger_texts (
    project_id VARCHAR(200) NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_ledger_texts PRIMARY KEY (project_id, digest)
)
 WITHOUT ROWID

CREATE TABLE ledger_uses (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    request BLOB NOT NULL,
    place INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    vote INTEGER NOT NULL,
    criterion TEXT NOT NULL,
    method TEXT NOT NULL,
    digest BLOB NOT NULL,
    failed BOOLEAN NOT NULL,
    failure TEXT,
    detail TEXT,
    step INTEGER,
    cached BOOLEAN NOT NULL,
    CONSTRAINT pk_ledger_uses PRIMARY KEY (project_id, run, request, place, slot, vote)
)
 WITHOUT ROWID

CREATE TABLE ledger_verdicts (
    project_id VARCHAR(200) NOT NULL,
    digest BLOB NOT NULL,
    request BLOB NOT NULL,
    score DOUBLE NOT NULL,
    probability DOUBLE,
    menu_mass DOUBLE,
    step INTEGER,
    grade DOUBLE,
    rationale TEXT,
    CONSTRAINT pk_ledger_verdicts PRIMARY KEY (project_id, digest)
)
 WITHOUT ROWID

CREATE TABLE rubric_aliases (
    project_id VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    alias VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT pk_rubric_aliases PRIMARY KEY (project_id, name, alias),
    CONSTRAINT fk_rubric_aliases_rubric_versions FOREIGN KEY(project_id, name, version) REFERENCES rubric_versions (project_id, name, version)
)
CREATE TABLE rubric_tags (
    project_id VARCHAR(200) NOT NULL,
    tag VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    CONSTRAINT pk_rubric_tags PRIMARY KEY (project_id, tag, name),
    CONSTRAINT fk_rubric_tags_rubrics FOREIGN KEY(project_id, name) REFERENCES rubrics (project_id, name)
)
CREATE INDEX ix_rubric_tags_project_name ON rubric_tags (project_id, name)
CREATE TABLE rubric_validations (
    project_id VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    pass_number INTEGER NOT NULL,
    judge VARCHAR(71) NOT NULL,
    model TEXT NOT NULL,
    template_digest VARCHAR(71) NOT NULL,
    created_at DATETIME NOT NULL,
    items JSON NOT NULL,
    CONSTRAINT pk_rubric_validations PRIMARY KEY (project_id, name, version, pass_number),
    CONSTRAINT fk_rubric_validations_rubric_versions FOREIGN KEY(project_id, name, version) REFERENCES rubric_versions (project_id, name, version)
)
CREATE TABLE rubric_versions (
    project_id VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    digest VARCHAR(71) NOT NULL,
    criteria JSON NOT NULL,
    criteria_count INTEGER NOT NULL,
    created_at DATETIME NOT NULL, parent INTEGER, metadata JSON DEFAULT '{}' NOT NULL, lineage JSON, retired_at DATETIME, retired_reason TEXT,
    CONSTRAINT pk_rubric_versions PRIMARY KEY (project_id, name, version),
    CONSTRAINT fk_rubric_versions_rubrics FOREIGN KEY(project_id, name) REFERENCES rubrics (project_id, name),
    CONSTRAINT uq_rubric_versions_digest UNIQUE (project_id, name, digest)
)
CREATE INDEX ix_rubric_versions_project_digest ON rubric_versions (project_id, digest)
CREATE TABLE rubric_words (
    project_id VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    words TEXT NOT NULL,
    CONSTRAINT pk_rubric_words PRIMARY KEY (project_id, name),
    CONSTRAINT fk_rubric_words_rubrics FOREIGN KEY(project_id, name) REFERENCES rubrics (project_id, name)
)
CREATE TABLE rubrics (
    project_id VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    latest_version INTEGER NOT NULL, current_version INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT pk_rubrics PRIMARY KEY (project_id, name)
)
