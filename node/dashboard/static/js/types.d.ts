// Shapes of the admin API's answers, as far as pages use them (docs/http.md). For the checker alone; not served.

export type Child = Node | string | number | null | undefined | false | Child[];

export interface NodeRow {
  name: string;
  id: number | null;
  rack: string | null;
  state: "live" | "leaving" | "gone";
  reason: string;
  leaders: number;
  replicas: number;
  in_sync: number;
  http: string | null;
  admin: string | null;
  drained: boolean;
}

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

export interface ReplicaState {
  node: string;
  role: string | null;
  leo: number | null;
  lag: number | null;
  in_sync: boolean;
  reason: string;
}

export interface Partition {
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
  replica_states: ReplicaState[];
}

export interface LagRow {
  queue: string;
  cluster: string | null;
  uuid: string | null;
  reason: string;
  bucket_type: string;
  seconds: number | null;
  objects: number | null;
  bytes: number | null;
  in_flight: number | null;
  partitions: number;
  unknown_partitions: number[];
  proven_ms: number | null;
}

export interface SinkLink {
  queue: string;
  peer: string;
  source_cluster: string | null;
  source_uuid: string | null;
  from: string;
  suspended: SinkSuspension | null;
  state: string;
  reason: string;
  delay_ms: number | null;
  errors_in_a_row: number;
  running: number;
  applied: number;
  merged: number;
  superseded: number;
  rejected: number;
  failed: number;
  recent_lag_ms_p50: number | null;
  recent_lag_ms_p99: number | null;
  last_answer_ms: number | null;
  last_batch_ms: number | null;
  last_error: string | null;
  last_error_ms: number | null;
}

/** One node's sink; `queue`, `peer` and `node` of a suspension are null for all. */
export interface SinkOverview {
  node: string;
  state: string;
  reason: string;
  workers: { count: number; busy: number; peer_limit: number; queue_limits: Record<string, number> };
  throttle: Throttle;
  limits_set: Made | null;
  sources: SinkSource[];
  dead_letters: { kept: number | null; given_up: number | null };
  suspensions: SinkSuspension[];
  queue_workers_set: (Made & { queue: string; node: string | null; workers: number })[];
  peers_set: (Made & { queue: string; url: string; cluster: string; removed: boolean })[];
  peers_unusable: { queue: string; url: string; reason: string }[];
  sinks: SinkLink[];
}

export type SinkSuspension = Made & { queue: string | null; peer: string | null; node: string | null };

export interface SinkSource {
  source_cluster: string;
  source_uuid: string;
  queue: string;
  fetched: number;
  fetched_bytes: number;
  applied: number;
  merged: number;
  superseded: number;
  rejected: number;
  failed: number;
  under_way: number;
  last_batch_ms: number | null;
}

export interface SinkNodes {
  nodes: { node: string; sink: SinkOverview | null }[];
  unknown: Record<string, string>;
}

/** Who changed something, when, and why. */
export interface Made {
  by: string;
  at_ms: number;
  reason: string;
}

/** Rates each second; null in `configured` and `file`: no limit. */
export interface Rates<T> {
  bytes_per_second: T;
  objects_per_second: T;
}

export interface Throttle {
  configured: Rates<number | null>;
  file?: Rates<number | null>;
  binding: string | null;
  achieved: Rates<number>;
  throttled_seconds: number;
}

export interface DeadLetter {
  id: number;
  at_ms: number;
  queue: string;
  peer: string;
  source_cluster: string;
  key: [string, string, string];
  reason: string;
  error: string;
  size_bytes: number;
  object_kept: boolean;
  tries: number;
}

export interface DeadLetterNodes {
  nodes: {
    node: string;
    dead_letters: DeadLetter[] | null;
    more: boolean | null;
    kept: number | null;
    given_up: number | null;
  }[];
  unknown: Record<string, string>;
}

/** One node's part of a queue. */
export interface QueuePart {
  publishing: string;
  serving: string;
  reason: string;
  partitions: number;
  waiting: number | null;
  in_flight: number;
  oldest_age_ms: number | null;
  priorities: Record<Priority, { waiting: number | null; in_flight: number }>;
  throttle: Throttle;
}

export type Priority = "real_time" | "full_sync" | "fold";

/** A queue of the whole cluster. */
export interface Queue {
  name: string;
  filter: string;
  cascade: boolean;
  overflow: string;
  riak_fetch: boolean;
  owner: { cluster: string; uuid: string; version: number; since_ms: number; by: string } | null;
  suspensions: (Made & { what: string; node: string | null })[];
  decree: (Made & { what: string; version: number }) | null;
  limits: { queue: number; objects: number; object_bytes: number };
  differs: string[];
  lacking: string[];
  publishing: string;
  serving: string;
  reason: string;
  unknown: string;
  priorities: Record<Priority, { waiting: number | null; in_flight: number | null; at_least: number }>;
  oldest_age_ms: number | null;
  consumers: {
    node: string;
    last_fetch_ms: number;
    at: string;
    last_given_ms: number | null;
    given: number;
    in_flight: number;
    waits_at: string[];
  }[];
  rates: {
    set: Made | null;
    binding: string[];
    achieved: Rates<number | null>;
    throttled_seconds: number | null;
  };
  held_types: Record<string, number>;
  nodes: Record<string, QueuePart | null>;
}

export interface Queues {
  queues: Queue[];
  unknown: Record<string, string>;
}

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

export interface FullsyncPeer {
  name: string;
  cluster: string | null;
  state: string;
  reason: string;
  proven_ms: Record<string, number | null>;
}

export interface FullsyncNodes {
  nodes: Record<string, { peers: FullsyncPeer[] } | null>;
}

export interface Leaders {
  controller: string;
  state: string;
  reason: string;
  automatic: boolean;
  imbalance: number;
  leaders: Record<string, number>;
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
