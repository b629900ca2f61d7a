"""All acts of operators; each module teaches the world those of one noun."""

from tests.simulation.world import (
    acts_backup,
    acts_commands,
    acts_credentials,
    acts_data,
    acts_fullsync,
    acts_nodes,
    acts_placement,
    acts_queues,
    acts_recovery,
    acts_sinks,
    acts_types,
)

MODULES = (
    acts_queues,
    acts_sinks,
    acts_fullsync,
    acts_types,
    acts_placement,
    acts_nodes,
    acts_backup,
    acts_recovery,
    acts_data,
    acts_commands,
    acts_credentials,
)
