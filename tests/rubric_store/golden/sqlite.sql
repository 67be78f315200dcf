CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
CREATE TABLE api_keys (
    project_id VARCHAR(200) NOT NULL,
    key_id VARCHAR(32) NOT NULL,
    secret_digest BLOB NOT NULL,
    scopes JSON NOT NULL,
    label TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    expires_at DATETIME,
    revoked_at DATETIME,
    last_used_at DATETIME,
    CONSTRAINT pk_api_keys PRIMARY KEY (project_id, key_id),
    CONSTRAINT uq_api_keys_key_id UNIQUE (key_id),
    CONSTRAINT fk_api_keys_projects FOREIGN KEY(project_id) REFERENCES projects (project_id)
)
CREATE TABLE audit (
    project_id VARCHAR(200) NOT NULL,
    entry BLOB NOT NULL,
    at DATETIME NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    "before" TEXT,
    "after" TEXT,
    CONSTRAINT pk_audit PRIMARY KEY (project_id, entry)
)
CREATE TABLE ended_sessions (
    project_id VARCHAR(200) NOT NULL,
    session_id VARCHAR(32) NOT NULL,
    expires_at DATETIME NOT NULL,
    CONSTRAINT pk_ended_sessions PRIMARY KEY (project_id, session_id)
)
CREATE INDEX ix_ended_sessions_expires_at ON ended_sessions (expires_at)
CREATE TABLE idempotency_keys (
    project_id VARCHAR(200) NOT NULL,
    key_digest BLOB NOT NULL,
    asked BLOB NOT NULL,
    first_at DATETIME NOT NULL,
    held_until DATETIME NOT NULL,
    expires_at DATETIME NOT NULL,
    status INTEGER,
    location TEXT,
    body BLOB,
    CONSTRAINT pk_idempotency_keys PRIMARY KEY (project_id, key_digest)
)
CREATE INDEX ix_idempotency_keys_expires_at ON idempotency_keys (expires_at)
CREATE TABLE judge_calibration_aliases (
    name VARCHAR(200) NOT NULL,
    alias VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT pk_judge_calibration_aliases PRIMARY KEY (name, alias),
    CONSTRAINT fk_judge_calibration_aliases_judge_calibrations FOREIGN KEY(name, version) REFERENCES judge_calibrations (name, version)
)
CREATE TABLE judge_calibrations (
    name VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    digest VARCHAR(71) NOT NULL,
    content JSON NOT NULL,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_judge_calibrations PRIMARY KEY (name, version),
    CONSTRAINT uq_judge_calibrations_digest UNIQUE (name, digest)
)
CREATE TABLE ledger_labels (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    request BLOB NOT NULL,
    place INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    labeller VARCHAR(200) NOT NULL,
    criterion TEXT NOT NULL,
    met BOOLEAN NOT NULL,
    at DATETIME NOT NULL,
    CONSTRAINT pk_ledger_labels PRIMARY KEY (project_id, run, request, place, slot, labeller)
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
    rationale TEXT, raw_probability DOUBLE, members TEXT,
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
    created_at DATETIME NOT NULL, members TEXT, reward_rules TEXT, judging_rules TEXT,
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
    status TEXT, reference_answer BLOB, ground_truth BLOB, declared_reward DOUBLE,
    CONSTRAINT pk_ledger_responses PRIMARY KEY (project_id, run, request, place)
)
 WITHOUT ROWID

CREATE TABLE ledger_run_criteria (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    step BIGINT NOT NULL,
    rubric BLOB NOT NULL,
    criterion TEXT NOT NULL,
    verdicts BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    passed BIGINT NOT NULL,
    score_sum DOUBLE NOT NULL, uncertain BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_ledger_run_criteria PRIMARY KEY (project_id, run, step, rubric, criterion)
)
 WITHOUT ROWID

CREATE TABLE ledger_run_failures (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    step BIGINT NOT NULL,
    kind TEXT NOT NULL,
    verdicts BIGINT NOT NULL,
    CONSTRAINT pk_ledger_run_failures PRIMARY KEY (project_id, run, step, kind)
)
 WITHOUT ROWID

CREATE TABLE ledger_run_measures (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    step BIGINT NOT NULL,
    name VARCHAR(100) NOT NULL,
    value DOUBLE NOT NULL,
    CONSTRAINT pk_ledger_run_measures PRIMARY KEY (project_id, run, step, name)
)
 WITHOUT ROWID

CREATE TABLE ledger_run_rubrics (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    rubric BLOB NOT NULL,
    responses BIGINT NOT NULL,
    CONSTRAINT pk_ledger_run_rubrics PRIMARY KEY (project_id, run, rubric)
)
 WITHOUT ROWID

CREATE TABLE ledger_run_signals (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    step BIGINT NOT NULL,
    signal TEXT NOT NULL,
    name TEXT NOT NULL,
    pairs BIGINT NOT NULL,
    x DOUBLE NOT NULL,
    y DOUBLE NOT NULL,
    xx DOUBLE NOT NULL,
    yy DOUBLE NOT NULL,
    xy DOUBLE NOT NULL,
    within BIGINT NOT NULL,
    within_xx DOUBLE NOT NULL,
    within_yy DOUBLE NOT NULL,
    within_xy DOUBLE NOT NULL,
    CONSTRAINT pk_ledger_run_signals PRIMARY KEY (project_id, run, step, signal, name)
)
 WITHOUT ROWID

CREATE TABLE ledger_run_steps (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    step BIGINT NOT NULL,
    mode TEXT NOT NULL,
    protocol TEXT NOT NULL,
    model TEXT NOT NULL,
    requests BIGINT NOT NULL,
    responses BIGINT NOT NULL,
    scored BIGINT NOT NULL,
    partial BIGINT NOT NULL,
    unscored BIGINT NOT NULL,
    rewards BIGINT NOT NULL,
    reward_sum DOUBLE NOT NULL,
    reward_squares DOUBLE NOT NULL,
    verdicts BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    cached BIGINT NOT NULL,
    judge_calls BIGINT NOT NULL,
    tokens_computed BIGINT NOT NULL,
    tokens_reused BIGINT NOT NULL,
    tokens_written BIGINT NOT NULL,
    seconds DOUBLE NOT NULL, uncertain BIGINT DEFAULT '0' NOT NULL, left_out BIGINT DEFAULT '0' NOT NULL, declared_rewards BIGINT DEFAULT '0' NOT NULL, declared_reward_sum DOUBLE DEFAULT '0' NOT NULL,
    CONSTRAINT pk_ledger_run_steps PRIMARY KEY (project_id, run, step, mode, protocol, model)
)
 WITHOUT ROWID

CREATE TABLE ledger_runs (
    project_id VARCHAR(200) NOT NULL,
    run VARCHAR(256) NOT NULL,
    first_at DATETIME NOT NULL,
    last_at DATETIME NOT NULL,
    CONSTRAINT pk_ledger_runs PRIMARY KEY (project_id, run)
)
CREATE INDEX ix_ledger_runs_last_at ON ledger_runs (project_id, last_at, run)
CREATE TABLE ledger_texts (
    project_id VARCHAR(200) NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_ledger_texts PRIMARY KEY (project_id, digest)
)
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
    cached BOOLEAN NOT NULL, passages TEXT,
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
    rationale TEXT, raw_probability DOUBLE, members TEXT,
    CONSTRAINT pk_ledger_verdicts PRIMARY KEY (project_id, digest)
)
CREATE TABLE operation_chunks (
    project_id VARCHAR(200) NOT NULL,
    operation_id VARCHAR(64) NOT NULL,
    chunk INTEGER NOT NULL,
    state VARCHAR(16) NOT NULL,
    inputs INTEGER NOT NULL,
    body BLOB,
    attempts INTEGER NOT NULL,
    owner VARCHAR(64),
    lease_until DATETIME,
    due_at DATETIME NOT NULL,
    announced_at DATETIME,
    problem TEXT,
    CONSTRAINT pk_operation_chunks PRIMARY KEY (project_id, operation_id, chunk),
    CONSTRAINT fk_operation_chunks_operations FOREIGN KEY(project_id, operation_id) REFERENCES operations (project_id, operation_id)
)
CREATE INDEX ix_operation_chunks_state ON operation_chunks (state, chunk)
CREATE TABLE operation_results (
    project_id VARCHAR(200) NOT NULL,
    operation_id VARCHAR(64) NOT NULL,
    chunk INTEGER NOT NULL,
    place INTEGER NOT NULL,
    number BIGINT NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_operation_results PRIMARY KEY (project_id, operation_id, chunk, place),
    CONSTRAINT uq_operation_results_number UNIQUE (project_id, operation_id, number),
    CONSTRAINT fk_operation_results_operation_chunks FOREIGN KEY(project_id, operation_id, chunk) REFERENCES operation_chunks (project_id, operation_id, chunk)
)
CREATE TABLE operations (
    project_id VARCHAR(200) NOT NULL,
    operation_id VARCHAR(64) NOT NULL,
    kind VARCHAR(32) NOT NULL,
    state VARCHAR(16) NOT NULL,
    revision BIGINT NOT NULL,
    submission BLOB,
    asked BLOB NOT NULL,
    request BLOB NOT NULL,
    progress JSON NOT NULL,
    usage JSON NOT NULL,
    summary BLOB,
    problem TEXT,
    tries INTEGER NOT NULL,
    results BIGINT NOT NULL,
    unfinished INTEGER NOT NULL,
    created_at DATETIME NOT NULL,
    started_at DATETIME,
    ended_at DATETIME,
    expires_at DATETIME,
    CONSTRAINT pk_operations PRIMARY KEY (project_id, operation_id),
    CONSTRAINT uq_operations_submission UNIQUE (project_id, submission)
)
CREATE INDEX ix_operations_created_at ON operations (project_id, created_at)
CREATE INDEX ix_operations_expires_at ON operations (expires_at)
CREATE TABLE project_usage (
    project_id VARCHAR(200) NOT NULL,
    day DATE NOT NULL,
    requests BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    CONSTRAINT pk_project_usage PRIMARY KEY (project_id, day),
    CONSTRAINT fk_project_usage_projects FOREIGN KEY(project_id) REFERENCES projects (project_id)
)
CREATE TABLE projects (
    project_id VARCHAR(200) NOT NULL,
    created_at DATETIME NOT NULL,
    weight DOUBLE DEFAULT '1' NOT NULL,
    requests_per_minute INTEGER,
    tokens_per_day BIGINT,
    tokens_total BIGINT,
    CONSTRAINT pk_projects PRIMARY KEY (project_id)
)
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
CREATE TABLE schema_generation (
    revision VARCHAR(32) NOT NULL,
    works_from VARCHAR(32) NOT NULL,
    CONSTRAINT pk_schema_generation PRIMARY KEY (revision)
)
