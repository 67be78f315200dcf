CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
CREATE TABLE rubric_versions (
    project_id VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    version INTEGER NOT NULL,
    digest VARCHAR(71) NOT NULL,
    criteria JSON NOT NULL,
    criteria_count INTEGER NOT NULL,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_rubric_versions PRIMARY KEY (project_id, name, version),
    CONSTRAINT fk_rubric_versions_rubrics FOREIGN KEY(project_id, name) REFERENCES rubrics (project_id, name),
    CONSTRAINT uq_rubric_versions_digest UNIQUE (project_id, name, digest)
)
CREATE INDEX ix_rubric_versions_project_digest ON rubric_versions (project_id, digest)
CREATE TABLE rubrics (
    project_id VARCHAR(200) NOT NULL,
    name VARCHAR(200) NOT NULL,
    latest_version INTEGER NOT NULL,
    CONSTRAINT pk_rubrics PRIMARY KEY (project_id, name)
)
