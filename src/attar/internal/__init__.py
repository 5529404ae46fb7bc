"""Small services without a subject of their own: files, plug-ins, strict JSON."""
