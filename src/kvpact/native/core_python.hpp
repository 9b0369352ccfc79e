// The core as Python sees it. Everything is checked here, before the core, which trusts its callers, may see it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core.hpp"
#include "entries_python.hpp"

namespace kvpact {

using MaybeArray = std::optional<Array>;
using Rows = nb::ndarray<nb::numpy, float>;

[[noreturn]] inline void refuse(const std::string& what) { throw nb::value_error(what.c_str()); }

// The core, and what must outlive the calls that brought it: tables, and the arrays and entries of the step under way.
class PythonCore {
 public:
  PythonCore(const Shape& shape, int activation, MaybeArray cos, MaybeArray sin, int num_threads);

  Matrix pack(Array weight, MaybeArray bias);
  void set_tables(Array embedding, MaybeArray positions, Matrix& head, Array norm_weight, MaybeArray norm_bias);
  void add_layer(Array attention_weight, MaybeArray attention_bias, Matrix& qkv, MaybeArray q_norm, MaybeArray k_norm, Matrix& out,
                 Array mlp_weight, MaybeArray mlp_bias, Matrix& up, Matrix& down);

  // groups: of (query_start_loc, seq_lens, slot_mapping, block_table, rules). entries: of each layer. Raises before anything is written.
  void begin(const std::vector<nb::tuple>& groups, const std::vector<int>& group_of_layer, nb::typed<nb::sequence, Entries> entries,
             Array token_ids, Array positions);

  template <void (Core::*Call)(int)>
  void layer_call(int layer) {
    const Use use(*this);
    check_open();
    if (layer < 0 || layer >= core_.num_layers()) throw nb::index_error("no such layer");
    nb::gil_scoped_release unlocked;
    (core_.*Call)(layer);
  }

  void finish();
  Rows hidden();
  // A layer's queries from `project` on, and what they attended to from `attend` on: [T, num_heads * head_dim].
  Rows queries();
  Rows attended();
  Rows logits(Array rows);

  Core& core() { return core_; }

 private:
  // One call at a time: the GIL is released inside, and a second thread would write into the same workspace.
  class Use {
   public:
    explicit Use(PythonCore& core) : used_(core.used_) {
      if (used_.exchange(true)) throw std::runtime_error("the core is in use by another thread: each thread needs a core of its own");
    }
    ~Use() { used_ = false; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::atomic<bool>& used_;
  };

  void check_begun() const {
    if (!stepping_) throw std::runtime_error("no step is under way: call begin first");
  }
  // Entries and arrays are there until `finish`; the rows stay.
  void check_open() const {
    check_begun();
    if (!kept_.is_valid()) throw std::runtime_error("the step is finished, and its entries are let go: call begin first");
  }

  void check_layers(const std::vector<EntryStorage>& storage, const std::vector<int>& group_of_layer, size_t num_groups) const;
  Table table(const Array& array, const char* name) const;
  Norm norm(const Array& weight, const MaybeArray& bias) const;

  Core core_;
  MaybeArray cos_, sin_;
  std::vector<Array> tables_;
  int64_t vocab_ = 0, num_positions_;
  std::vector<StepArrays> arrays_;
  nb::object kept_;
  std::atomic<bool> used_{false};
  bool stepping_ = false;
};

}  // namespace kvpact
