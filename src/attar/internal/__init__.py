"""Services without a subject of their own: files, hashes, plug-ins, strict JSON, text."""
