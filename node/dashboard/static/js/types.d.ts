// Shapes of the admin API's answers, as far as pages use them (docs/http-admin.md). For the checker alone; not served.

export type Child = Node | string | number | null | undefined | false | Child[];

export interface ClusterStatus {
  cluster: string;
  state: string;
  state_reason: string;
  cluster_uuid: string;
  node: string;
  ready: boolean;
  reason: string;
  version: string;
  controller: string | null;
  metastore: string;
  registered: boolean;
  read_at_ms: number | null;
  started_ms: number;
  partitions: { total: number; election: number; candidate_found: number; online: number; offline: number };
  replicas: { total: number; in_sync: number };
  under_replicated: number[];
  below_min_isr: number[];
  unclean_elections: Record<string, number>;
  balancing: { state: string; reason: string; automatic: boolean; imbalance: number } | null;
  moving: { orders: number; done: number; under_way: number; total: number; reason: string };
  problems: string[];
  warnings: string[];
  silent: string[];
  nodes: NodeRow[];
  actors: { actor: string; state: string; reason: string }[];
}

/** GET /admin/findings: what is wrong or not known, the worst first. */
export interface Findings {
  state: "ok" | "unknown" | "warning" | "critical";
  findings: { code: string; severity: string; subject: string; sentence: string; remedy: string }[];
}

export interface LagRow {
  queue: string;
  cluster: string | null;
  uuid: string | null;
  reason: string;
  bucket_type: string;
  seconds: number | null;
  at_least_s?: number | null;
  objects: number | null;
  bytes: number | null;
  in_flight: number | null;
  partitions: number;
  unknown_partitions: number[];
  proven_ms: number | null;
  both_ways?: boolean;
  equal_ms?: number | null;
  proofs_unknown_at?: string[];
  ledger_off?: number;
}

export type Priority = "real_time" | "full_sync" | "fold";

export interface Gap {
  queue: string;
  id: string;
  node: string;
  partition: number | null;
  from_offset: number | null;
  upto_offset: number | null;
  from_ms: number;
  upto_ms: number | null;
  count_at_least: number;
  count_at_most: number | null;
  what: string;
  by: string;
  reason: string;
  bucket_types?: string[] | null;
}

export interface Gaps {
  gaps: Gap[];
  unknown: string[];
  unknown_partitions: Record<string, number[]>;
}

/** What was sent of a queue, or received from one (`direction`). */
export interface LedgerRow {
  direction: "sent" | "received";
  queue: string;
  state: string;
  reason: string;
  closes: boolean | null;
  found: number | null;
  eligible: number | null;
  acknowledged: number | null;
  collapsed: number | null;
  collapsed_unseen: number | null;
  vanished: number | null;
  given_up: number | null;
  handed_on: number | null;
  waiting: number | null;
  in_flight: number | null;
}

export interface RunRow {
  kind: "comparison" | "seed" | "import";
  run: string;
  state: "ended" | "running" | "quiet" | "interrupted" | "unknown" | "unreadable";
  reason: string;
  clusters: string[];
  urls: string[];
  bucket_type: string | null;
  started_ms: number | null;
  ended_ms: number | null;
  seconds: number | null;
  outcome: string | null;
  error: string;
  counts: Record<string, number> | null;
  progress: {
    stage: string;
    began_ms: number;
    at_ms: number;
    done: number;
    of: number;
    left_s: number | null;
  } | null;
  nodes: string[];
}

export interface Runs {
  runs: RunRow[];
  directories: Record<string, string | null>;
  left_out: Record<string, number>;
  cut: string[];
  unknown: Record<string, string>;
}

export interface RunDetails extends RunRow {
  node: string;
  directory: string;
  options: {
    bucket: string;
    modified_since_ms: number;
    modified_before_ms: number;
    full: boolean;
    bodies: boolean;
    sample: number;
    filter: string;
    queue: string;
    path: string;
  } | null;
  summary: {
    version: string;
    bytes: number | null;
    mode: string | null;
    why: string | null;
    keys: number | null;
    left_rows: number | null;
    right_rows: number | null;
    findings_cut: boolean;
    findings: {
      groups: {
        verdict: string;
        difference: string | null;
        side: string | null;
        bucket: string;
        count: number;
      }[];
      groups_left: number;
      findings_left: number;
    } | null;
    coverage: { segments: number; of: number; chunks_done: number; chunks: number } | null;
    segments_open: [number, number][];
    segments_open_count: number;
    reasons: string[];
    reasons_count: number;
    named: string[];
    named_count: number;
    chunks: Record<string, number>;
    verified: { run_id: string; outcome: string } | null;
  } | null;
  hand_over: { queue: string; state: string } | null;
  repairs: {
    plan: string;
    queue: string;
    direction: string;
    objects: number;
    bytes: number | null;
    expected_siblings: number;
    seconds: number;
    queued: number | null;
    state: string | null;
    at_ms: number | null;
  }[];
  repairs_left: number;
  problems: string[];
  commands: { about: string; command: string }[];
}

export interface Leaders {
  controller: string;
  state: string;
  reason: string;
  automatic: boolean;
  imbalance: number;
  leaders: Record<string, number>;
  goal?: { by_load: boolean; nodes: number; reason: string; busy: Record<string, number | null> };
  plan: { partition: number; from: string; to: string }[];
  run: {
    by: string;
    outcome: string;
    done: number;
    failed: number;
    moves: { partition: number; from: string; to: string; state: string; reason: string }[];
  } | null;
}

/** GET /admin/history: null where nothing was measured. */
export interface History {
  step_ms: number;
  from_ms: number;
  to_ms: number;
  nodes: Record<string, Record<string, (number | null)[]> | null>;
  unknown: Record<string, string>;
  cluster: { series: Record<string, (number | null)[]>; counted: number[] } | null;
}

export interface MovePlan {
  outcome: string;
  order: number | null;
  title: string;
  plan: string;
  partitions: { partition: number; from: string[]; to: string[]; adds: string[]; removes: string[] }[];
  copies: number;
  nodes: { node: string; replicas: number; then: number }[];
  notes: string[];
}

export interface Moves {
  at_once: number;
  paused: string;
  orders: {
    order: number;
    kind: string;
    title: string;
    by: string;
    at_ms: number;
    cancelled_by: string | null;
    done: number;
    total: number;
    estimate_ms: number | null;
    partitions: {
      partition: number;
      stage: string;
      reason: string;
      copies: { node: string; in_sync: boolean; lag: number | null; reason: string }[];
    }[];
  }[];
  ended: {
    order: number;
    title: string;
    by: string;
    at_ms: number;
    ended_ms: number;
    outcome: string;
    done: number;
    total: number;
  }[];
  drained: { node: string; by: string; at_ms: number }[];
}

// generated: nouns
export interface ValueAtNode {
  effective: number | string;
  origin: string;
}

export interface OptionRow {
  option: string;
  bucket_type: string | null;
  default: string;
  set: number | string | null;
  effective: number | string;
  origin: string;
  by: string | null;
  at_ms: number | null;
  reason: string | null;
  waiting: number[];
  scope: string;
  unit: string;
  range: string;
  choices: string[];
  meaning: string;
  differs: Record<string, ValueAtNode>;
}

export interface OptionList {
  options: OptionRow[];
  behind: string[];
  unknown: Record<string, string>;
}

export interface OptionChange {
  outcome: string;
  before: number | string | null;
  before_by: string | null;
  options: OptionRow[];
  behind: string[];
  unknown: Record<string, string>;
  warnings: string[];
}

export interface BucketTypeRow {
  bucket_type: string;
  partition_count: number;
  replication_factor: number | null;
  min_isr: number | string;
  min_isr_set: number | string | null;
  online: number;
  in_sync: number;
  changing: number;
  replication_factor_then: number | null;
  orders: number[];
}

export interface BucketTypes {
  bucket_types: BucketTypeRow[];
}

export interface PlacedPartition {
  id: number;
  replicas: (number | null)[];
  nodes: string[];
  adding: string[];
  removing: string[];
  partition: number;
  leader: string | null;
  status: string;
}

export interface PropertyRow {
  property: string;
  value: boolean | number | string;
  origin: "bucket" | "bucket type" | "default";
  by: string | null;
  at_ms: number | null;
  reason: string | null;
  default: boolean | number | string;
  acts: boolean;
  right: string;
  meaning: string;
}

export interface BucketTypeShown {
  bucket_type: string;
  partition_count: number;
  replication_factor: number | null;
  min_isr: number | string;
  min_isr_set: number | string | null;
  online: number;
  in_sync: number;
  changing: number;
  replication_factor_then: number | null;
  orders: number[];
  partitions: PlacedPartition[];
  properties: PropertyRow[];
}

export interface PartitionPlace {
  id: number;
  replicas: number[];
}

export interface BucketTypeCreated {
  outcome: string;
  bucket_type: string;
  online: number;
  partitions: PartitionPlace[];
}

export interface ReplicaRow {
  node: string;
  role: string | null;
  epoch: number | null;
  gen: number | null;
  leo: number | null;
  durable: number | null;
  hw: number | null;
  applied: number | null;
  lag: number | null;
  in_sync: boolean;
  reason: string;
}

export interface PartitionRow {
  partition: number;
  bucket_type: string;
  index: number;
  leader: string | null;
  replicas: string[];
  adding: string[];
  removing: string[];
  isr: string[];
  elr: string[];
  min_isr: number;
  epoch: number;
  leo: number | null;
  hw: number | null;
  applied: number | null;
  lag: number | null;
  status: string;
  reason: string;
  replica_states: ReplicaRow[];
}

export interface Partitions {
  partitions: PartitionRow[];
}

export interface ReplicaHolds {
  node: string;
  eligible: boolean | null;
  epoch: number | null;
  log_epoch: number | null;
  leo: number | null;
  hw: number | null;
  applied: number | null;
  gen: number | null;
}

export interface LeaderPlan {
  outcome: string;
  partition: number;
  node: string;
  version: number;
  status: string;
  record_epoch: number;
  reason: string;
  replicas: ReplicaHolds[];
  notes: string[];
  epoch?: number | null;
  lineage?: number | null;
}

export interface PartitionsAssigned {
  outcome: string;
  bucket_type: string;
  partitions: number;
}

export interface NodeRow {
  name: string;
  id: number | null;
  rack: string | null;
  state: "gone" | "leaving" | "live";
  drained: boolean;
  leaders: number;
  replicas: number;
  in_sync: number;
  http: string | null;
  admin: string | null;
  cluster: string | null;
  reason: string;
}

export interface Nodes {
  nodes: NodeRow[];
}

export interface NodeRemoved {
  outcome: string;
  node: string;
}

export interface OwnerRow {
  cluster: string;
  uuid: string;
  version: number;
  since_ms: number;
  by: string;
}

export interface QueuePriority {
  waiting: number | null;
  in_flight: number;
  queued?: number;
  collapsed?: number;
  acknowledged?: number;
  vanished?: number;
  cleared?: number;
  outcomes?: [number, number, number, number];
}

export interface QueuePriorities {
  real_time: QueuePriority;
  full_sync: QueuePriority;
  fold: QueuePriority;
}

export interface SuspensionRow {
  what: string;
  node: string | null;
  by: string;
  at_ms: number;
  reason: string;
}

export interface QueueDecree {
  version: number;
  what: string;
  start_ms: number;
  by: string;
  at_ms: number;
  reason: string;
  positions: number;
  by_time: boolean;
  change: unknown;
  released: unknown;
}

export interface ReferenceLimits {
  queue: number;
  objects: number;
  object_bytes: number;
}

export interface RateLimits {
  bytes_per_second: number | null;
  objects_per_second: number | null;
}

export interface AchievedRates {
  bytes_per_second: number | null;
  objects_per_second: number | null;
}

export interface SignedAct {
  by: string;
  at_ms: number;
  reason: string;
}

export interface QueueThrottle {
  configured: RateLimits;
  binding: string | null;
  achieved: AchievedRates;
  throttled_seconds: number;
  set: SignedAct | null;
  file?: RateLimits;
}

export interface OfferSet {
  filter: string | null;
  cascade: boolean | null;
  was: string;
  by: string;
  at_ms: number;
  reason: string;
}

export interface QueueChanges {
  offer?: OfferSet;
  limits?: Record<string, unknown>;
}

export interface QueueConsumer {
  node: string;
  waits: boolean;
  last_fetch_ms: number;
  last_given_ms: number | null;
  given: number;
  in_flight: number;
}

export interface DifferingProperties {
  bucket_type: string;
  bucket: string | null;
  properties: string[];
}

export interface QueueShare {
  node: string;
  name: string;
  partitions: number;
  filter: string;
  cascade: boolean;
  overflow: string;
  riak_fetch: boolean;
  owner: OwnerRow | null;
  waiting: number | null;
  waiting_at_ms: number | null;
  priorities: QueuePriorities;
  in_flight: number;
  oldest_age_ms: number | null;
  publishing: string;
  serving: string;
  suspended: SuspensionRow | null;
  suspensions: SuspensionRow[];
  decree: QueueDecree | null;
  limits: ReferenceLimits;
  throttle: QueueThrottle;
  gaps: number;
  properties_differ: Record<string, string[]>;
  objects_in_memory: number;
  references_in_memory: number;
  served: number;
  acknowledged: number;
  redelivered: number;
  batches: number;
  collapsed: number;
  vanished: number;
  late_acknowledgements: number;
  refused_acknowledgements: number;
  reason: string;
  held_types: Record<string, number>;
  changed: QueueChanges;
  consumers?: QueueConsumer[];
  property_differences?: Record<string, DifferingProperties[]>;
}

export interface QueueShares {
  queues: QueueShare[];
  notes?: string[];
  failed?: Record<string, string>;
}

export interface QueuesOfNode {
  node: string;
  queues: QueueShare[] | null;
  gone: boolean;
  failed?: Record<string, string>;
}

export interface QueuesOfNodes {
  nodes: QueuesOfNode[];
}

export interface PriorityDepth {
  waiting: number | null;
  in_flight: number | null;
  at_least: number;
}

export interface PriorityDepths {
  real_time: PriorityDepth;
  full_sync: PriorityDepth;
  fold: PriorityDepth;
}

export interface ClusterConsumer {
  node: string;
  last_fetch_ms: number;
  at: string;
  last_given_ms: number | null;
  given: number;
  in_flight: number;
  waits_at: string[];
}

export interface QueueRates {
  set: SignedAct | null;
  binding: string[];
  achieved: AchievedRates;
  throttled_seconds: number | null;
}

export interface QueueRow {
  name: string;
  filter: string;
  cascade: boolean;
  overflow: string;
  riak_fetch: boolean;
  owner: OwnerRow | null;
  suspensions: SuspensionRow[];
  decree: QueueDecree | null;
  limits: ReferenceLimits;
  changed: QueueChanges;
  differs: string[];
  lacking: string[];
  publishing: string;
  serving: string;
  reason: string;
  unknown: string;
  priorities: PriorityDepths;
  oldest_age_ms: number | null;
  consumers: ClusterConsumer[];
  rates: QueueRates;
  held_types: Record<string, number>;
  nodes: Record<string, QueueShare | null>;
}

export interface Queues {
  queues: QueueRow[];
  unknown: Record<string, string>;
  at_ms: number;
}

export interface WaitingByPriority {
  real_time: number | null;
  full_sync: number | null;
  fold: number | null;
}

export interface QueuePlan {
  queue: string;
  act: string;
  owner: string | null;
  waiting: WaitingByPriority;
  gaps: number | null;
  silent: string[];
  effect: string;
  outcome: string;
}

export interface ReferencesPushed {
  queued: number;
  refused: number;
  reason: string;
}

export interface GapsClosed {
  closed: number;
  unknown: string[];
}

export interface SinkWorkers {
  count: number;
  busy: number;
  peer_limit: number;
  queue_limits: Record<string, number>;
}

export interface ThrottleRow {
  configured: RateLimits;
  binding: string | null;
  achieved: AchievedRates;
  throttled_seconds: number;
}

export interface SinkSource {
  source_cluster: string;
  source_uuid: string;
  queue: string;
  fetched: number;
  fetched_bytes: number;
  applied: number;
  superseded: number;
  merged: number;
  rejected: number;
  failed: number;
  under_way: number;
  last_batch_ms: number | null;
}

export interface DeadLetterCounts {
  kept: number | null;
  given_up: number | null;
}

export interface SinkSuspensionRow {
  queue: string | null;
  peer: string | null;
  by: string;
  at_ms: number;
  reason: string;
  node: string | null;
}

export interface SetPeer {
  queue: string;
  url: string;
  cluster: string;
  token_file: string | null;
  removed: boolean;
  by: string;
  at_ms: number;
  reason: string;
}

export interface SetQueueWorkers {
  queue: string;
  node: string | null;
  workers: number;
  by: string;
  at_ms: number;
  reason: string;
}

export interface UnusablePeer {
  queue: string;
  url: string;
  reason: string;
}

export interface RiakLinkCounts {
  left_out: number;
  answers_lost: number;
  lost: number;
  waiting?: number | null;
  lost_lately?: boolean;
  seed_fault?: string;
}

export interface SinkLink {
  queue: string;
  peer: string;
  kind?: "cluster" | "riak";
  riak?: RiakLinkCounts | null;
  source_cluster: string | null;
  source_uuid: string | null;
  from: string;
  set: SignedAct | null;
  since_ms: number | null;
  state: string;
  properties_differ: string[];
  property_differences: DifferingProperties[];
  held_types: string[];
  suspended: SinkSuspensionRow | null;
  delay_ms: number | null;
  errors_in_a_row: number;
  running: number;
  applied: number;
  superseded: number;
  merged: number;
  rejected: number;
  failed: number;
  fetches: number;
  batches: number;
  errors: number;
  lag_ms_p50: number | null;
  lag_ms_p99: number | null;
  recent_lag_ms_p50: number | null;
  recent_lag_ms_p99: number | null;
  last_answer_ms: number | null;
  last_batch_ms: number | null;
  reason: string;
  last_error: string | null;
  last_error_reason: string | null;
  last_error_ms: number | null;
}

export interface SinkOverview {
  node: string;
  actor: "sink";
  state: string;
  workers: SinkWorkers;
  throttle: ThrottleRow;
  limits_set: SignedAct | null;
  sources: SinkSource[];
  dead_letters: DeadLetterCounts;
  suspensions: SinkSuspensionRow[];
  peers_set: SetPeer[];
  queue_workers_set: SetQueueWorkers[];
  peers_unusable: UnusablePeer[];
  reason: string;
  sinks: SinkLink[];
  failed?: Record<string, string>;
  notes?: string[];
}

export interface SinkOfNode {
  node: string;
  sink: SinkOverview | null;
}

export interface SinksOfNodes {
  nodes: SinkOfNode[];
  unknown: Record<string, string>;
}

export interface ClockDot {
  uuid: string | null;
  actor: string;
  partition: number | null;
  epoch: number | null;
  offset: number | null;
}

export interface SeenClock {
  clock: string;
  seen: ClockDot[];
}

export interface ConflictRow {
  at_ms: number;
  queue: string;
  source_cluster: string;
  source_uuid: string;
  peer: string;
  key: [string, string, string];
  siblings: number;
  ours: SeenClock;
  theirs: SeenClock;
}

export interface ConflictList {
  node: string;
  conflicts: ConflictRow[];
  noted: number;
  dropped: number;
  limit: number;
}

export interface CheckedLine {
  what: string;
  state: string;
  found: string;
  right: string;
}

export interface LinkChecked {
  node: string;
  queue: string;
  url: string;
  checks: CheckedLine[];
}

export interface DeadLetterRow {
  id: number;
  at_ms: number;
  queue: string;
  peer: string;
  source_cluster: string;
  key: [string, string, string];
  key_encoded: [string, string, string];
  size_bytes: number;
  object_kept: boolean;
  tries: number;
  reason: string;
  error: string;
}

export interface DeadLetterList {
  dead_letters: DeadLetterRow[];
}

export interface DeadLettersOfNode {
  node: string;
  dead_letters: DeadLetterRow[] | null;
  more: boolean | null;
  kept: number | null;
  given_up: number | null;
}

export interface DeadLetterNodes {
  nodes: DeadLettersOfNode[];
  unknown: Record<string, string>;
  at_ms: number;
}

export interface RetriedLetter {
  id: number;
  outcome: string | null;
  reason: string | null;
  error: string | null;
}

export interface LettersRetried {
  retried: RetriedLetter[];
}

export interface LettersDropped {
  dropped: number;
}

export interface SeedRow {
  state: "done" | "failed" | "interrupted" | "running" | "stopped";
  way: "keys" | "queue";
  node: string;
  bucket_type: string | null;
  bucket: string | null;
  fraction: number;
  left_ms: number | null;
  buckets: number | null;
  buckets_done: number;
  current: [string, string] | null;
  current_keys: number | null;
  current_done: number;
  keys: number;
  compared: number;
  missing: number;
  refused: number;
  notes: string[];
  notes_left_out: number;
  error: string;
  began_ms: number;
  changed_ms: number;
  ended_ms: number | null;
  set: SignedAct;
}

export interface RiakRow {
  name: string;
  queue: string;
  urls: string[];
  bucket_types: string;
  from: "config" | "operator";
  set: SignedAct | null;
  user: string;
  workers: number;
  bytes_per_second: number;
  objects_per_second: number;
  states: Record<string, number>;
  unusable: string;
  left_out: number;
  answers_lost: number;
  lost: number;
  seed: SeedRow | null;
}

export interface RiakList {
  node: string;
  riaks: RiakRow[];
}

export interface RiakChecked {
  node: string;
  url: string;
  queue: string;
  checks: CheckedLine[];
}

export interface SentQueue {
  queue: string;
  cluster: string;
  uuid: string;
  bucket_types: string[];
}

export interface RunningCheckRow {
  peer: string;
  kind: string;
  bucket_type: string;
  began_ms: number;
  by: string;
  state: string;
  branches_differing: number;
  branches_done: number;
  keys_compared: number;
  differences: number;
  queued: number;
  estimate_s: number | null;
}

export interface PeerSettingsRow {
  by: string;
  at_ms: number;
  reason: string;
  values: Record<string, unknown>;
}

export interface CheckRetry {
  tries: number;
  reason: string;
}

export interface CheckRange {
  since_ms: number;
  before_ms: number;
  bucket: string | null;
  bucket_encoded: string | null;
}

export interface DifferingKey {
  bucket_type: string;
  bucket: string;
  key: string;
  difference: string;
}

export interface CheckResultRow {
  began_ms: number;
  kind: string;
  bucket_type: string;
  verdict: string;
  seconds: number;
  proven: boolean;
  segments: number;
  keys: number;
  differences: Record<string, number>;
  queued: number;
  left: number;
  transient: number;
  filtered: number;
  by: string;
  unexplained: number;
  refused: number;
  segments_ahead?: number;
  lacking: boolean;
  reason: string;
}

export interface FullSyncPeerRow {
  name: string;
  urls: string[];
  cluster: string | null;
  origin: string;
  set: PeerSettingsRow[];
  state: string;
  suspended: SignedAct | null;
  next_ms: number | null;
  next_kind: string | null;
  retry: CheckRetry | null;
  range: CheckRange | null;
  wants: Record<string, number>;
  auto_left_out: number;
  all_window: string;
  cluster_slice: number;
  bidirectional: boolean;
  bucket_types: string[];
  proven_ms: Record<string, number | null>;
  equal_ms?: Record<string, number | null>;
  equal_types?: string[];
  both_ways?: boolean;
  compares: Record<string, string[]>;
  queue: string;
  queue_delisted: boolean;
  queue_of_other: string | null;
  gaps_open: number | null;
  gaps_queues: string[];
  gaps_uncompared?: number;
  gaps_uncompared_types?: string[];
  gaps_wait_s: number | null;
  gaps_closed: number;
  named: DifferingKey[];
  newest: Record<string, CheckResultRow | null>;
  newest_looked: Record<string, CheckResultRow | null>;
  results: CheckResultRow[];
  shared_by?: string[];
  unknown?: string[];
  warning?: string | null;
  reason: string;
}

export interface RemovedPeer {
  name: string;
  by: string;
  at_ms: number;
  reason: string;
}

export interface PeerLeftOut {
  name: string;
  reason: string;
}

export interface FullSyncOfNode {
  node: string;
  actor: "full-sync";
  state: string;
  reason: string;
  sent: SentQueue[];
  running: RunningCheckRow | null;
  peers: FullSyncPeerRow[];
  removed: RemovedPeer[];
  left_out: PeerLeftOut[];
  failed?: Record<string, string>;
}

export interface FullSyncSuspensionRow {
  peer: string | null;
  node: string | null;
  by: string;
  at_ms: number;
  reason: string;
}

export interface FullSyncNodes {
  gone: Record<string, number>;
  unknown: Record<string, string>;
  at_ms: number;
  skew_ms: number;
  nodes: Record<string, FullSyncOfNode | null>;
  suspensions: FullSyncSuspensionRow[] | null;
  suspensions_error: string;
}

export interface RetryRow {
  at_ms: number;
  kind: string;
  tries: number;
}

export interface DueCheckRow {
  at_ms: number;
  kind: string;
}

export interface SkippedCheck {
  at_ms: number;
  kind: string;
  reason: string;
}

export interface PeerDay {
  name: string;
  suspended: boolean;
  slots: number | null;
  slot_ms: number | null;
  retry: RetryRow | null;
  checks: DueCheckRow[];
  skipped: SkippedCheck[];
}

export interface DayOfNode {
  node: string;
  peers: PeerDay[];
}

export interface DaysOfNodes {
  gone: Record<string, number>;
  unknown: Record<string, string>;
  at_ms: number;
  skew_ms: number;
  nodes: Record<string, DayOfNode | null>;
}

export interface NodeResultRow {
  began_ms: number;
  kind: string;
  bucket_type: string;
  verdict: string;
  seconds: number;
  proven: boolean;
  segments: number;
  keys: number;
  differences: Record<string, number>;
  queued: number;
  left: number;
  transient: number;
  filtered: number;
  by: string;
  unexplained: number;
  refused: number;
  segments_ahead?: number;
  lacking: boolean;
  reason: string;
  peer: string;
  node: string;
}

export interface FullSyncResults {
  results: NodeResultRow[];
  unknown: Record<string, string>;
}

export interface CheckBegun {
  peer: string | null;
  peers: string[];
  node: string;
  kind: string;
  by: string;
  at_ms: number;
}

export interface FullSyncChanged {
  node: string;
  actor: "full-sync";
  state: string;
  reason: string;
  sent: SentQueue[];
  running: RunningCheckRow | null;
  peers: FullSyncPeerRow[];
  removed: RemovedPeer[];
  left_out: PeerLeftOut[];
  failed?: Record<string, string>;
  acted: Record<string, string[] | null>;
  later?: string[];
}

export interface TreeRow {
  partition: number;
  bucket_type: string;
  state: string;
  offset: number;
  bytes: number | null;
  built_ms: number | null;
  building_keys: number | null;
  reason: string;
}

export interface TreeMismatchRow {
  partition: number;
  segment: number;
  offset: number;
  against: string;
  wall_ms: number;
}

export interface TreesOfNode {
  node: string;
  trees: TreeRow[];
  mismatches: TreeMismatchRow[];
}

export interface TreeParts {
  trees: TreeRow[];
  mismatches: TreeMismatchRow[];
}

export interface TreesOfNodes {
  nodes: Record<string, TreeParts | null>;
}

export interface TreesRebuilt {
  rebuilding: number[];
}
// end of nouns

/** `bucket`: percent-encoded; null: the bucket type itself. */
export interface BucketProperties {
  bucket_type: string;
  bucket: string | null;
  properties: PropertyRow[];
  warnings: string[];
  behind: string[];
  unknown: Record<string, string>;
}

export type PropertyValue = boolean | number | string;

/** Who accepted a version of an object: a partition of a cluster, at an offset. `uuid` null: no cluster of Isthmus. */
export interface Dot {
  uuid: string | null;
  cluster?: string | null;
  actor: string;
  partition: number | null;
  epoch: number | null;
  offset: number | null;
}

export interface Explanation {
  partition: number;
  segment: number;
  leader: string | null;
  known: boolean;
  reason: string;
  object: {
    tombstone: boolean;
    bytes: number;
    offset: number;
    epoch: number | null;
    applied_ms: number | null;
    origin: string | null;
    origin_cluster: string | null;
    last_modified_ms: number;
    seen: Dot[];
    siblings: (Dot & { tombstone: boolean; last_modified_ms: number })[];
  } | null;
  queues: {
    queue: string;
    owner: string | null;
    filter: string;
    rule: string;
    cursor: number | null;
    state: string;
    reason: string;
    ahead: number | null;
    next: string;
  }[] | null;
  lower: {
    node: string;
    queue: string;
    priority: string;
    state: string;
    ahead: number | null;
    reason: string;
    next: string;
  }[];
  reap: { waits: string | null } | null;
  compared: {
    node: string;
    fullsync: string;
    verdict: string;
    difference: string | null;
    reason: string;
    check: string | null;
    at_ms: number | null;
    changed_since: boolean;
    proven_ms: number | null;
    suspended: string | null;
  }[];
  dead_letters: {
    node: string;
    id: number;
    at_ms: number;
    queue: string;
    source_cluster: string;
    reason: string;
    error: string;
    tries: number;
  }[];
  dead_letters_unknown_at: string[];
  other_sides: { fullsync: string | null; url: string; state: string; clock: string | null; reason: string }[];
  unknown: Record<string, string>;
  next: string;
  at_ms: number;
}

/** A line of the audit log (docs/what-happened.md#acts). */
export interface AuditAct {
  id: number;
  at_ms: number;
  node: string;
  who: { by: string | null; role: string | null; token: string | null; certificate: string[] | null };
  from: string | null;
  via: string;
  what: { act: string; route: string | null; path: string | null; request: unknown };
  before: unknown;
  after: unknown;
  reason: string | null;
  outcome: "done" | "refused" | "unknown";
  status: number | null;
  error: string | null;
  lost_before?: number;
  cut?: boolean;
}

export interface AuditPage {
  acts: AuditAct[];
  next: string | null;
  nodes: Record<string, { unreadable: number; lost: number } | null>;
  unknown: Record<string, string>;
  searched_to_ms: number | null;
}
