"""Settings: TOML on the outside, frozen typed values on the inside. Imports nothing of ours."""
