# A toolchain of tests that compile plugins: less is optimized, so it takes a third of the time.
set(NARROWCAST_OPTIMIZE "-O1" CACHE STRING "")
