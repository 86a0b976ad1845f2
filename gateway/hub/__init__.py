"""Models from a hub: what its local cache holds, and downloads. Knows no route and no engine."""
