"""Riak's trees over this cluster's keys: kept beside those of Isthmus where `[[riak.trees]]` asks for them, and summed
over the leaders of all nodes. A Riak's full-sync compares its own with them."""
