"""Published weights: files of codes and scales that inference engines read, from a model and into
one.

    shards of a weight   codes [rows, bytes], scales [rows, blocks]       encoding.py
            |            gathered, one weight at a time
    (name, tensor)       as a layout names and shapes them                model.py
            |
    folder               safetensors, an index, config.json               export.py, folder.py

load.py goes the other way, with what folder.py finds there. names.py says where each tensor is in
files, and configuration.py what config.json says of them. Which layouts there are is a table,
narrowcast.registry.layouts. Codes and scales are those that the forward multiplied: they are not
made anew.
"""
