// Copies and comparisons of a few rows: no vector code, memcpy has its own.
#include "vocabulary.hpp"

#include <cstring>

namespace fastverify {

void look_up(const EmbeddingTable& table, const int64_t* ids, size_t count, float* out) {
  const size_t num_bytes = table.row_size * sizeof(float);
  for (size_t i = 0; i < count; ++i, out += table.row_size) {
    const int64_t local_id = ids[i] - table.first_id;
    if (local_id < 0 || local_id >= table.num_ids) {
      std::memset(out, 0, num_bytes);
    } else {
      std::memcpy(out, table.rows + static_cast<size_t>(local_id) * table.row_size, num_bytes);
    }
  }
}

void choose_best(const float* best, size_t num_ranks, size_t num_rows, int64_t* ids) {
  for (size_t row = 0; row < num_rows; ++row) {
    const float* chosen = best + row * 2;
    for (size_t rank = 1; rank < num_ranks; ++rank) {
      const float* const candidate = best + (rank * num_rows + row) * 2;
      if (candidate[0] > chosen[0]) chosen = candidate;
    }
    ids[row] = static_cast<int64_t>(chosen[1]);
  }
}

}  // namespace fastverify
