"""Conversion of modules: nc.convert, nc.to_plain, nc.fits and nc.summary."""
