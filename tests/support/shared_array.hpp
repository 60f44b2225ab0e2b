// Arrays in memory that a machine and this program both reach: `Memory` allocates it, releases it
// and waits for the machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace narrowcast::test {

struct HostMemory {
  static void* allocate(size_t bytes) { return ::operator new(bytes); }
  static void release(void* memory) { ::operator delete(memory); }
  static void wait() {}
};

// A run of it.
template <class Memory, class Type>
class Array {
 public:
  explicit Array(size_t count, Type fill = {})
      : data_(static_cast<Type*>(Memory::allocate(std::max<size_t>(count, 1) * sizeof(Type)))),
        span_(data_.get(), count) {
    std::ranges::fill(span_, fill);
  }
  explicit Array(std::span<const Type> values) : Array(values.size()) {
    std::ranges::copy(values, span_.begin());
  }
  std::span<Type> all() const { return span_; }
  Type* data() const { return span_.data(); }
  Type& operator*() const { return span_[0]; }

 private:
  struct Release {
    void operator()(Type* memory) const { Memory::release(memory); }
  };
  std::unique_ptr<Type, Release> data_;
  std::span<Type> span_;
};

}  // namespace narrowcast::test
