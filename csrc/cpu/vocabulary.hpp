// What a rank that holds part of the vocabulary does besides products: look up embeddings, find the best of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastverify {

// Rows of a table that holds ids first_id..first_id + num_ids.
struct EmbeddingTable {
  const float* rows;
  int64_t first_id, num_ids;
  size_t row_size;
};

// The row of each id, zeros for an id that the table does not hold.
void look_up(const EmbeddingTable& table, const int64_t* ids, size_t count, float* out);

// best[ranks][rows][2] is a value and its id; the id of the largest value of each row, the first rank's of equals.
void choose_best(const float* best, size_t num_ranks, size_t num_rows, int64_t* ids);

}  // namespace fastverify
