"""Settings as frozen dataclasses, the strict TOML loader, overrides and presets."""
