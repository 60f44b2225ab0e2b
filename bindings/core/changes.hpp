// What makes something wrong that has been found out about shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace narrowcast {

struct Store;

// Counts. Python's lock guards them.
inline int64_t changes = 0;  // that a tensor looks at another store, that a store has other parts,
                             // that bytes are stale
inline int64_t writes = 0;   // that bytes will be made, of whichever matrix
inline void note_change() { ++changes; }

// Something that looks at bytes of others, and keeps its own copy before they are made anew.
class WriteObserver {
 public:
  virtual ~WriteObserver() = default;
  virtual void before_write() = 0;
};
inline std::vector<WriteObserver*> write_observers;  // until the next write

// To be called before bytes are made.
inline void note_write() {
  ++writes;
  for (WriteObserver* const one : write_observers) one->before_write();
  write_observers.clear();
}

// Whether shards are as they were when all of them were looked at. Before a gather that is
// asked of each weight of a group, and once a forward of all of a model, whose objects lie
// scattered in memory: to look at them again takes longer than all else that the host does there.
// It begins with a look at the stores, and keeps nothing of them but torch's counts of writes.
class Watch {
 public:
  explicit Watch(const std::vector<std::shared_ptr<Store>>& stores);

  // Whether no change has been noted since, and nothing has been written to the stores' masters.
  bool is_quiet() const;

 private:
  int64_t changes_;
  std::vector<std::pair<c10::VariableVersion, uint32_t>> written_;
};

}  // namespace narrowcast
