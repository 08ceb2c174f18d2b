CREATE TABLE allowed_patterns (
	tenant VARCHAR(40) NOT NULL,
	pattern_key VARCHAR(200) NOT NULL,
	created_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_allowed_patterns PRIMARY KEY (tenant, pattern_key)
);

CREATE TABLE blobs (
	hash VARCHAR(64) NOT NULL,
	body TEXT NOT NULL,
	CONSTRAINT pk_blobs PRIMARY KEY (hash)
);

CREATE TABLE dead_targets (
	tenant VARCHAR(40) NOT NULL,
	key VARCHAR(300) NOT NULL,
	reason TEXT NOT NULL,
	marked_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_dead_targets PRIMARY KEY (tenant, key)
);

CREATE TABLE idempotency_keys (
	tenant VARCHAR(40) NOT NULL,
	source VARCHAR(100) NOT NULL,
	key VARCHAR(256) NOT NULL,
	fingerprint VARCHAR(64) NOT NULL,
	run_pk BIGINT,
	created_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_idempotency_keys PRIMARY KEY (tenant, source, key)
);

CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);

CREATE TABLE jobs (
	pk BIGSERIAL NOT NULL,
	job_id VARCHAR(12) NOT NULL,
	tenant VARCHAR(40) NOT NULL,
	name VARCHAR(200) NOT NULL,
	definition TEXT NOT NULL,
	state VARCHAR(10) NOT NULL,
	next_slot DOUBLE PRECISION,
	next_fire_at DOUBLE PRECISION,
	completed INTEGER DEFAULT '0' NOT NULL,
	consecutive_failures INTEGER DEFAULT '0' NOT NULL,
	paused_at DOUBLE PRECISION,
	paused_reason TEXT,
	last_run_at DOUBLE PRECISION,
	last_status VARCHAR(10),
	last_error TEXT,
	created_at DOUBLE PRECISION NOT NULL,
	updated_at DOUBLE PRECISION NOT NULL,
	removed_at DOUBLE PRECISION,
	CONSTRAINT pk_jobs PRIMARY KEY (pk),
	CONSTRAINT ck_jobs_state CHECK (state in ('scheduled', 'paused', 'completed', 'error')),
	CONSTRAINT ck_jobs_due_is_scheduled CHECK (next_fire_at is null or (state = 'scheduled' and removed_at is null)),
	CONSTRAINT uq_jobs_job_id UNIQUE (job_id)
);

CREATE INDEX ix_jobs_due ON jobs (next_fire_at) WHERE next_fire_at is not null;

CREATE TABLE logins (
	name VARCHAR(64) NOT NULL,
	version INTEGER DEFAULT '0' NOT NULL,
	sealed TEXT,
	expires_at DOUBLE PRECISION,
	renew_at DOUBLE PRECISION,
	claim VARCHAR(32),
	claimed_until DOUBLE PRECISION,
	dead_reason TEXT,
	updated_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_logins PRIMARY KEY (name),
	CONSTRAINT ck_logins_sealed CHECK ((version = 0) = (sealed is null)),
	CONSTRAINT ck_logins_claim CHECK ((claim is null) = (claimed_until is null))
);

CREATE TABLE maintenance (
	name VARCHAR(40) NOT NULL,
	ran_at DOUBLE PRECISION NOT NULL,
	hold_until DOUBLE PRECISION DEFAULT '0' NOT NULL,
	CONSTRAINT pk_maintenance PRIMARY KEY (name)
);

CREATE TABLE sessions (
	pk BIGSERIAL NOT NULL,
	session_id VARCHAR(40) NOT NULL,
	tenant VARCHAR(40) NOT NULL,
	source VARCHAR(100),
	name VARCHAR(256),
	active_run_pk BIGINT,
	message_seq INTEGER DEFAULT '0' NOT NULL,
	system_prompt TEXT NOT NULL,
	tools_hash VARCHAR(64) NOT NULL,
	workspace TEXT NOT NULL,
	title VARCHAR(80),
	created_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_sessions PRIMARY KEY (pk),
	CONSTRAINT uq_sessions_tenant_source_name UNIQUE (tenant, source, name),
	CONSTRAINT ck_sessions_named_by_somebody CHECK ((source is null) = (name is null)),
	CONSTRAINT uq_sessions_session_id UNIQUE (session_id)
);

CREATE TABLE tenants (
	name VARCHAR(40) NOT NULL,
	created_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_tenants PRIMARY KEY (name)
);

CREATE TABLE webhook_events (
	pk BIGSERIAL NOT NULL,
	tenant VARCHAR(40) NOT NULL,
	route VARCHAR(64) NOT NULL,
	received_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_webhook_events PRIMARY KEY (pk)
);

CREATE INDEX ix_webhook_events_rate ON webhook_events (tenant, route, received_at);

CREATE INDEX ix_webhook_events_received ON webhook_events (received_at);

CREATE TABLE webhook_routes (
	tenant VARCHAR(40) NOT NULL,
	name VARCHAR(64) NOT NULL,
	secret TEXT NOT NULL,
	definition TEXT NOT NULL,
	created_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_webhook_routes PRIMARY KEY (tenant, name)
);

CREATE TABLE workers (
	pk BIGSERIAL NOT NULL,
	worker_id VARCHAR(40) NOT NULL,
	name VARCHAR(200) NOT NULL,
	queues VARCHAR(200) NOT NULL,
	state VARCHAR(10) NOT NULL,
	started_at DOUBLE PRECISION NOT NULL,
	expires_at DOUBLE PRECISION NOT NULL,
	watermarks TEXT DEFAULT '{}' NOT NULL,
	CONSTRAINT pk_workers PRIMARY KEY (pk),
	CONSTRAINT ck_workers_state CHECK (state in ('alive', 'stopped', 'dead', 'crashed')),
	CONSTRAINT uq_workers_worker_id UNIQUE (worker_id)
);

CREATE TABLE firings (
	pk BIGSERIAL NOT NULL,
	job_pk BIGINT NOT NULL,
	slot DOUBLE PRECISION NOT NULL,
	outcome VARCHAR(20) NOT NULL,
	reason TEXT NOT NULL,
	run_pk BIGINT,
	is_waiting BOOLEAN DEFAULT false NOT NULL,
	execution VARCHAR(10),
	hinted_at DOUBLE PRECISION,
	lease_token VARCHAR(32),
	lease_owner BIGINT,
	claimed_at DOUBLE PRECISION,
	collected TEXT,
	remark TEXT,
	owes_note BOOLEAN DEFAULT false NOT NULL,
	settled_at DOUBLE PRECISION NOT NULL,
	ended_at DOUBLE PRECISION,
	CONSTRAINT pk_firings PRIMARY KEY (pk),
	CONSTRAINT uq_firings_job_pk_slot UNIQUE (job_pk, slot),
	CONSTRAINT ck_firings_outcome CHECK (outcome in ('fired', 'caught_up', 'skipped_overlap', 'missed', 'blocked_budget', 'failed_to_start')),
	CONSTRAINT ck_firings_execution CHECK (execution in ('pending', 'running', 'completed', 'failed', 'unknown')),
	CONSTRAINT ck_firings_started CHECK ((outcome in ('fired', 'caught_up')) = (run_pk is not null or execution is not null)),
	CONSTRAINT ck_firings_running_is_claimed CHECK ((lease_token is not null) = (execution is not null and execution = 'running')),
	CONSTRAINT ck_firings_due_is_pending CHECK (hinted_at is null or execution = 'pending'),
	CONSTRAINT fk_firings_job_pk FOREIGN KEY(job_pk) REFERENCES jobs (pk)
);

CREATE INDEX ix_firings_claimed ON firings (lease_owner) WHERE lease_owner is not null;

CREATE INDEX ix_firings_due ON firings (hinted_at) WHERE hinted_at is not null;

CREATE INDEX ix_firings_notes ON firings (pk) WHERE owes_note;

CREATE INDEX ix_firings_open ON firings (job_pk, run_pk) WHERE ended_at is null and (run_pk is not null or execution is not null);

CREATE INDEX ix_firings_runs ON firings (job_pk, settled_at) WHERE run_pk is not null;

CREATE TABLE messages (
	session_pk BIGINT NOT NULL,
	seq INTEGER NOT NULL,
	run_pk BIGINT NOT NULL,
	role VARCHAR(9) NOT NULL,
	body TEXT,
	blob_hash VARCHAR(64),
	created_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_messages PRIMARY KEY (session_pk, seq),
	CONSTRAINT ck_messages_one_body CHECK ((body is null) <> (blob_hash is null)),
	CONSTRAINT fk_messages_session_pk FOREIGN KEY(session_pk) REFERENCES sessions (pk) ON DELETE CASCADE
);

CREATE TABLE principals (
	pk BIGSERIAL NOT NULL,
	tenant VARCHAR(40) NOT NULL,
	name VARCHAR(100) NOT NULL,
	created_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_principals PRIMARY KEY (pk),
	CONSTRAINT uq_principals_tenant_name UNIQUE (tenant, name),
	CONSTRAINT fk_principals_tenant FOREIGN KEY(tenant) REFERENCES tenants (name)
);

CREATE TABLE runs (
	pk BIGSERIAL NOT NULL,
	run_id VARCHAR(40) NOT NULL,
	session_pk BIGINT NOT NULL,
	tenant VARCHAR(40) NOT NULL,
	principal VARCHAR(200),
	model VARCHAR(200) NOT NULL,
	endpoint TEXT,
	origin VARCHAR(20),
	network VARCHAR(10),
	status VARCHAR(24) NOT NULL,
	parent_pk BIGINT,
	parent_iteration INTEGER,
	parent_position SMALLINT,
	child_index INTEGER,
	cause_pk BIGINT,
	root_pk BIGINT,
	depth SMALLINT DEFAULT '0' NOT NULL,
	is_background SMALLINT DEFAULT '0' NOT NULL,
	has_budget SMALLINT DEFAULT '0' NOT NULL,
	is_reserved SMALLINT DEFAULT '0' NOT NULL,
	reserved_tokens BIGINT DEFAULT '0' NOT NULL,
	reserved_nano_usd BIGINT DEFAULT '0' NOT NULL,
	exhausted VARCHAR(12),
	halt VARCHAR(8),
	state_version SMALLINT NOT NULL,
	iteration INTEGER DEFAULT '0' NOT NULL,
	iterations_max INTEGER NOT NULL,
	refunds INTEGER DEFAULT '0' NOT NULL,
	attempt SMALLINT DEFAULT '1' NOT NULL,
	attempts_max SMALLINT NOT NULL,
	deaths SMALLINT,
	recovery TEXT,
	memory TEXT,
	call_count SMALLINT DEFAULT '0' NOT NULL,
	hinted_at DOUBLE PRECISION,
	hints SMALLINT DEFAULT '0' NOT NULL,
	resume_at DOUBLE PRECISION,
	lease_token VARCHAR(32),
	lease_owner BIGINT,
	claimed_at DOUBLE PRECISION,
	message_seq INTEGER DEFAULT '0' NOT NULL,
	event_seq INTEGER DEFAULT '0' NOT NULL,
	steers SMALLINT DEFAULT '0' NOT NULL,
	goes_first BOOLEAN DEFAULT false NOT NULL,
	output_seq INTEGER,
	input_tokens BIGINT DEFAULT '0' NOT NULL,
	output_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_read_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_tokens BIGINT DEFAULT '0' NOT NULL,
	reasoning_tokens BIGINT DEFAULT '0' NOT NULL,
	estimated_tokens BIGINT DEFAULT '0' NOT NULL,
	refused_attempts INTEGER DEFAULT '0' NOT NULL,
	unknown_attempts INTEGER DEFAULT '0' NOT NULL,
	unknown_input_tokens BIGINT DEFAULT '0' NOT NULL,
	unknown_output_tokens BIGINT DEFAULT '0' NOT NULL,
	cost_nano_usd BIGINT DEFAULT '0' NOT NULL,
	cost_status VARCHAR(10),
	doubtful_nano_usd BIGINT DEFAULT '0' NOT NULL,
	unpriced_calls INTEGER DEFAULT '0' NOT NULL,
	watched_until DOUBLE PRECISION DEFAULT '0' NOT NULL,
	deadline_at DOUBLE PRECISION,
	idle_s_max DOUBLE PRECISION,
	created_at DOUBLE PRECISION NOT NULL,
	started_at DOUBLE PRECISION,
	updated_at DOUBLE PRECISION NOT NULL,
	finished_at DOUBLE PRECISION,
	exit_reason VARCHAR(40),
	failure_kind VARCHAR(60),
	failure_message TEXT,
	deliver TEXT,
	CONSTRAINT pk_runs PRIMARY KEY (pk),
	CONSTRAINT ck_runs_exit_reason CHECK ((status in ('completed', 'failed', 'cancelled', 'expired')) = (exit_reason is not null)),
	CONSTRAINT ck_runs_terminal_is_at_rest CHECK (status not in ('completed', 'failed', 'cancelled', 'expired') or (lease_token is null and hinted_at is null)),
	CONSTRAINT ck_runs_lease CHECK ((lease_token is null) = (lease_owner is null)),
	CONSTRAINT ck_runs_reserved_is_claimed CHECK (is_reserved = 0 or (has_budget > 0 and lease_token is not null)),
	CONSTRAINT ck_runs_claimed_is_not_due CHECK (lease_token is null or hinted_at is null),
	CONSTRAINT ck_runs_counters CHECK (iteration >= 0 and event_seq >= 0 and message_seq >= 0),
	CONSTRAINT ck_runs_tree CHECK ((parent_pk is null or cause_pk is null) and (parent_pk is null) = (depth = 0) and (parent_pk is null and cause_pk is null) = (root_pk is null)),
	CONSTRAINT ck_runs_halt CHECK (halt is null or halt in ('paused', 'stopping', 'stopped')),
	CONSTRAINT uq_runs_run_id UNIQUE (run_id),
	CONSTRAINT fk_runs_session_pk FOREIGN KEY(session_pk) REFERENCES sessions (pk)
);

CREATE INDEX ix_runs_begun_children ON runs (parent_pk) WHERE parent_pk is not null and message_seq > 0 and status not in ('completed', 'failed', 'cancelled', 'expired');

CREATE INDEX ix_runs_caused ON runs (cause_pk, pk) WHERE cause_pk is not null;

CREATE UNIQUE INDEX ix_runs_child_of_call ON runs (parent_pk, parent_iteration, parent_position, child_index) WHERE parent_pk is not null;

CREATE INDEX ix_runs_claimed ON runs (lease_owner) WHERE lease_owner is not null;

CREATE INDEX ix_runs_deadline ON runs (deadline_at) WHERE deadline_at is not null and status not in ('completed', 'failed', 'cancelled', 'expired');

CREATE INDEX ix_runs_due ON runs (hinted_at) WHERE hinted_at is not null;

CREATE INDEX ix_runs_halting ON runs (pk) WHERE halt = 'stopping';

CREATE INDEX ix_runs_idle ON runs (updated_at) WHERE idle_s_max is not null and status = 'running';

CREATE INDEX ix_runs_open ON runs (session_pk, pk) WHERE status not in ('completed', 'failed', 'cancelled', 'expired');

CREATE INDEX ix_runs_open_children ON runs (parent_pk, parent_iteration, parent_position, pk) WHERE parent_pk is not null and status not in ('completed', 'failed', 'cancelled', 'expired');

CREATE INDEX ix_runs_resume ON runs (resume_at) WHERE resume_at is not null;

CREATE INDEX ix_runs_suspect ON runs (hinted_at) WHERE hinted_at is not null and deaths is not null;

CREATE INDEX ix_runs_tenant ON runs (tenant, pk) WHERE tenant <> 'default';

CREATE INDEX ix_runs_tree ON runs (root_pk) WHERE root_pk is not null;

CREATE INDEX ix_runs_waiting_children ON runs (parent_pk, pk) WHERE parent_pk is not null and status = 'queued' and hinted_at is null;

CREATE TABLE session_documents (
	session_pk BIGINT NOT NULL,
	key VARCHAR(100) NOT NULL,
	body TEXT NOT NULL,
	CONSTRAINT pk_session_documents PRIMARY KEY (session_pk, key),
	CONSTRAINT fk_session_documents_session_pk FOREIGN KEY(session_pk) REFERENCES sessions (pk) ON DELETE CASCADE
);

CREATE TABLE api_keys (
	pk BIGSERIAL NOT NULL,
	key_id VARCHAR(20) NOT NULL,
	tenant VARCHAR(40) NOT NULL,
	principal_pk BIGINT NOT NULL,
	hash VARCHAR(64) NOT NULL,
	scopes VARCHAR(200) NOT NULL,
	created_at DOUBLE PRECISION NOT NULL,
	expires_at DOUBLE PRECISION,
	last_used_at DOUBLE PRECISION,
	revoked_at DOUBLE PRECISION,
	replaced_by VARCHAR(20),
	CONSTRAINT pk_api_keys PRIMARY KEY (pk),
	CONSTRAINT uq_api_keys_key_id UNIQUE (key_id),
	CONSTRAINT fk_api_keys_tenant FOREIGN KEY(tenant) REFERENCES tenants (name),
	CONSTRAINT fk_api_keys_principal_pk FOREIGN KEY(principal_pk) REFERENCES principals (pk),
	CONSTRAINT uq_api_keys_hash UNIQUE (hash)
);

CREATE INDEX ix_api_keys_tenant ON api_keys (tenant);

CREATE TABLE auxiliary_calls (
	run_pk BIGINT NOT NULL,
	iteration INTEGER NOT NULL,
	position SMALLINT NOT NULL,
	number SMALLINT NOT NULL,
	task VARCHAR(12) NOT NULL,
	request TEXT,
	material TEXT,
	answer TEXT,
	failure_kind VARCHAR(40),
	asked_at DOUBLE PRECISION NOT NULL,
	answered_at DOUBLE PRECISION,
	CONSTRAINT pk_auxiliary_calls PRIMARY KEY (run_pk, iteration, position, number),
	CONSTRAINT ck_auxiliary_calls_answered CHECK ((answer is not null or failure_kind is not null) = (answered_at is not null)),
	CONSTRAINT ck_auxiliary_calls_one_outcome CHECK (answer is null or failure_kind is null),
	CONSTRAINT ck_auxiliary_calls_asked_until_answered CHECK ((request is null) = (answered_at is not null)),
	CONSTRAINT fk_auxiliary_calls_run_pk FOREIGN KEY(run_pk) REFERENCES runs (pk) ON DELETE CASCADE
);

CREATE TABLE budgets (
	root_pk BIGINT NOT NULL,
	iterations_max INTEGER NOT NULL,
	iterations_reserved INTEGER DEFAULT '0' NOT NULL,
	iterations_spent INTEGER DEFAULT '0' NOT NULL,
	tokens_max BIGINT,
	tokens_reserved BIGINT DEFAULT '0' NOT NULL,
	tokens_spent BIGINT DEFAULT '0' NOT NULL,
	tool_calls_max INTEGER,
	tool_calls_spent INTEGER DEFAULT '0' NOT NULL,
	nano_usd_max BIGINT,
	nano_usd_reserved BIGINT DEFAULT '0' NOT NULL,
	nano_usd_spent BIGINT DEFAULT '0' NOT NULL,
	unknown_costs INTEGER DEFAULT '0' NOT NULL,
	turns INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT pk_budgets PRIMARY KEY (root_pk),
	CONSTRAINT ck_budgets_not_negative CHECK (iterations_reserved >= 0 and iterations_spent >= 0 and tokens_reserved >= 0 and nano_usd_reserved >= 0),
	CONSTRAINT ck_budgets_never_one_more CHECK (iterations_spent + iterations_reserved <= iterations_max),
	CONSTRAINT fk_budgets_root_pk FOREIGN KEY(root_pk) REFERENCES runs (pk) ON DELETE CASCADE
);

CREATE TABLE deliveries (
	pk BIGSERIAL NOT NULL,
	delivery_id VARCHAR(40) NOT NULL,
	tenant VARCHAR(40) NOT NULL,
	run_pk BIGINT,
	job_pk BIGINT,
	target TEXT NOT NULL,
	body TEXT,
	state VARCHAR(10) NOT NULL,
	attempts SMALLINT DEFAULT '0' NOT NULL,
	losses SMALLINT DEFAULT '0' NOT NULL,
	deaths SMALLINT,
	parts_sent INTEGER DEFAULT '0' NOT NULL,
	adjustments VARCHAR(200) NOT NULL,
	is_in_doubt BOOLEAN DEFAULT false NOT NULL,
	not_before DOUBLE PRECISION,
	hinted_at DOUBLE PRECISION,
	hints SMALLINT DEFAULT '0' NOT NULL,
	lease_token VARCHAR(32),
	lease_owner BIGINT,
	claimed_at DOUBLE PRECISION,
	first_attempt_at DOUBLE PRECISION,
	receipt TEXT,
	error_kind VARCHAR(20),
	error TEXT,
	created_at DOUBLE PRECISION NOT NULL,
	updated_at DOUBLE PRECISION NOT NULL,
	settled_at DOUBLE PRECISION,
	CONSTRAINT pk_deliveries PRIMARY KEY (pk),
	CONSTRAINT ck_deliveries_state CHECK (state in ('pending', 'attempting', 'delivered', 'failed', 'abandoned')),
	CONSTRAINT ck_deliveries_attempting_is_claimed CHECK ((state = 'attempting') = (lease_token is not null)),
	CONSTRAINT ck_deliveries_due_is_pending CHECK (hinted_at is null or (state = 'pending' and not_before is null)),
	CONSTRAINT ck_deliveries_settled CHECK ((state in ('delivered', 'failed', 'abandoned')) = (settled_at is not null)),
	CONSTRAINT uq_deliveries_delivery_id UNIQUE (delivery_id),
	CONSTRAINT fk_deliveries_run_pk FOREIGN KEY(run_pk) REFERENCES runs (pk) ON DELETE CASCADE,
	CONSTRAINT fk_deliveries_job_pk FOREIGN KEY(job_pk) REFERENCES jobs (pk)
);

CREATE INDEX ix_deliveries_claimed ON deliveries (lease_owner) WHERE lease_owner is not null;

CREATE INDEX ix_deliveries_due ON deliveries (hinted_at) WHERE hinted_at is not null;

CREATE INDEX ix_deliveries_later ON deliveries (not_before) WHERE not_before is not null;

CREATE INDEX ix_deliveries_run_pk ON deliveries (run_pk);

CREATE INDEX ix_deliveries_suspect ON deliveries (hinted_at) WHERE hinted_at is not null and deaths is not null;

CREATE INDEX ix_deliveries_tenant ON deliveries (tenant, pk) WHERE tenant <> 'default';

CREATE TABLE events (
	run_pk BIGINT NOT NULL,
	seq INTEGER NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	event VARCHAR(40) NOT NULL,
	data TEXT NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (run_pk, seq),
	CONSTRAINT fk_events_run_pk FOREIGN KEY(run_pk) REFERENCES runs (pk) ON DELETE CASCADE
);

CREATE TABLE run_inputs (
	run_pk BIGINT NOT NULL,
	spec TEXT NOT NULL,
	CONSTRAINT pk_run_inputs PRIMARY KEY (run_pk),
	CONSTRAINT fk_run_inputs_run_pk FOREIGN KEY(run_pk) REFERENCES runs (pk) ON DELETE CASCADE
);

CREATE TABLE steers (
	pk BIGSERIAL NOT NULL,
	run_pk BIGINT NOT NULL,
	text TEXT NOT NULL,
	created_at DOUBLE PRECISION NOT NULL,
	message_seq INTEGER,
	CONSTRAINT pk_steers PRIMARY KEY (pk),
	CONSTRAINT fk_steers_run_pk FOREIGN KEY(run_pk) REFERENCES runs (pk) ON DELETE CASCADE
);

CREATE INDEX ix_steers_pending ON steers (run_pk, pk) WHERE message_seq is null;

CREATE TABLE tool_calls (
	run_pk BIGINT NOT NULL,
	iteration INTEGER NOT NULL,
	position SMALLINT NOT NULL,
	name VARCHAR(100) NOT NULL,
	replay VARCHAR(5) NOT NULL,
	segment SMALLINT NOT NULL,
	status VARCHAR(10) NOT NULL,
	waits_for VARCHAR(8),
	children_max SMALLINT,
	approved_arguments TEXT,
	asks SMALLINT,
	attempt SMALLINT DEFAULT '1' NOT NULL,
	deaths SMALLINT,
	timeout_s REAL NOT NULL,
	result_seq INTEGER NOT NULL,
	hinted_at DOUBLE PRECISION,
	hints SMALLINT DEFAULT '0' NOT NULL,
	lease_token VARCHAR(32),
	lease_owner BIGINT,
	claimed_at DOUBLE PRECISION,
	deadline_at DOUBLE PRECISION,
	settled_at DOUBLE PRECISION,
	CONSTRAINT pk_tool_calls PRIMARY KEY (run_pk, iteration, position),
	CONSTRAINT ck_tool_calls_status CHECK (status in ('pending', 'running', 'waiting', 'succeeded', 'failed', 'cancelled', 'unknown')),
	CONSTRAINT ck_tool_calls_waiting_for_something CHECK ((status = 'waiting') = (waits_for is not null)),
	CONSTRAINT ck_tool_calls_running_is_claimed CHECK ((status = 'running') = (lease_token is not null)),
	CONSTRAINT ck_tool_calls_due_is_pending CHECK (hinted_at is null or status = 'pending'),
	CONSTRAINT ck_tool_calls_asking_is_open CHECK (asks is null or asks = 0 or status in ('pending', 'running')),
	CONSTRAINT fk_tool_calls_run_pk FOREIGN KEY(run_pk) REFERENCES runs (pk) ON DELETE CASCADE
)
 WITH (fillfactor = 80);

CREATE INDEX ix_tool_calls_asking ON tool_calls (hinted_at) WHERE hinted_at is not null and asks = 1;

CREATE INDEX ix_tool_calls_claimed ON tool_calls (lease_owner) WHERE lease_owner is not null;

CREATE INDEX ix_tool_calls_due ON tool_calls (hinted_at) WHERE hinted_at is not null;

CREATE INDEX ix_tool_calls_suspect ON tool_calls (hinted_at) WHERE hinted_at is not null and deaths is not null;

CREATE TABLE tree_events (
	root_pk BIGINT NOT NULL,
	seq INTEGER NOT NULL,
	run_pk BIGINT NOT NULL,
	event_seq INTEGER NOT NULL,
	CONSTRAINT pk_tree_events PRIMARY KEY (root_pk, seq),
	CONSTRAINT uq_tree_events_run_pk_event_seq UNIQUE (run_pk, event_seq),
	CONSTRAINT fk_tree_events_root_pk FOREIGN KEY(root_pk) REFERENCES runs (pk) ON DELETE CASCADE
);

CREATE TABLE waits (
	pk BIGSERIAL NOT NULL,
	run_pk BIGINT NOT NULL,
	iteration INTEGER NOT NULL,
	position SMALLINT NOT NULL,
	kind VARCHAR(8) NOT NULL,
	request TEXT NOT NULL,
	opened_at DOUBLE PRECISION NOT NULL,
	expires_at DOUBLE PRECISION,
	closed_at DOUBLE PRECISION,
	outcome VARCHAR(10),
	answered_by VARCHAR(200),
	reason TEXT,
	CONSTRAINT pk_waits PRIMARY KEY (pk),
	CONSTRAINT ck_waits_outcome CHECK ((closed_at is null) = (outcome is null)),
	CONSTRAINT fk_waits_run_pk FOREIGN KEY(run_pk) REFERENCES runs (pk) ON DELETE CASCADE
);

CREATE INDEX ix_waits_answered ON waits (run_pk) WHERE closed_at is not null;

CREATE INDEX ix_waits_expiry ON waits (expires_at) WHERE closed_at is null and expires_at is not null;

CREATE INDEX ix_waits_open ON waits (run_pk) WHERE closed_at is null;

