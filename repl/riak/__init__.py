"""Riak's formats: external terms, clocks, objects, answers of queues, hashes of trees. Pure."""
