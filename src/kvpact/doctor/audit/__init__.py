"""Looks at caches and modules as they are, without an engine around them: `assert_isolated(cache)`, `audit_visibility(module, ...)`."""
