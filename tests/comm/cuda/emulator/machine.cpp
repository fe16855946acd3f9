// The machine: ranks with a stream of launches each, blocks and threads as fibers, one seeded random schedule.
//
// A launch starts when every block of the one before it on its stream has allowed that or ended. The schedule takes
// ranks by their speed, freezes warps for a while, and lets stores arrive now and then; it knows nothing of the protocols.

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "memory.hpp"

namespace emulator {

Index thread_index, block_index, block_size, grid_size;

namespace {

constexpr u32 WARP = 32;
constexpr u32 MAX_DRAWS = 8;  // Arbitrary: more draws freeze blocks harder
constexpr std::size_t STACK_BYTES = 64 << 10;

struct Block;

struct Fiber {
  ucontext_t context;
  Block* block = nullptr;
  void* stack = nullptr;
  u32 index = 0;
  u64 cluster_phase = 0;
  std::size_t place = 0;  // in the pool that holds it
  bool has_started = false, has_ended = false, looked_in_vain = false;
  const char* doing = "the start";
  u64 address = 0;
};

struct Barrier {
  u32 arrived = 0;
  u64 passed = 0;
  std::vector<Fiber*> waiting;
};

// Values alternate between two places: no lane gets two exchanges ahead of another.
struct Warp {
  Barrier barrier;
  u64 frozen_until = 0;  // the step before which it moves only if chance insists
  u32 num_alive = 0;
  u32 values[2][WARP] = {};
};

struct Cluster {
  u64 id = 0;
  u32 num_alive = 0;
  Barrier barrier;
  std::vector<Block*> blocks;
};

struct Launch;

struct Block {
  Launch* launch = nullptr;
  Cluster* cluster = nullptr;
  u64 id = 0;
  u32 index = 0;
  u32 num_alive = 0;
  u32 num_allowing = 0;
  bool has_started = false;
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<char> shared;
  std::unique_ptr<Fiber[]> fibers;
};

struct Launch {
  u64 id = 0;
  u32 rank = 0;
  const Module* module = nullptr;
  void (*function)(const void*) = nullptr;
  std::string name;
  std::vector<char> call;
  u32 num_blocks = 0, num_threads = 0, cluster = 1, word_bytes = 4;
  bool may_overlap = false;
  u32 num_blocks_alive = 0, num_blocks_allowing = 0;
  bool has_started = false, has_ended = false;
  std::vector<Block> blocks;
  std::vector<Cluster> clusters;
  std::vector<Fiber*> waiting;  // for the launch before to end
};

struct Pool {
  std::vector<Fiber*> fibers;

  void add(Fiber* fiber) {
    fiber->place = fibers.size();
    fibers.push_back(fiber);
  }
  void remove(Fiber* fiber) {
    fibers[fiber->place] = fibers.back();
    fibers[fiber->place]->place = fiber->place;
    fibers.pop_back();
  }
};

// Threads that looked in vain are apart, since most of their steps show nothing.
struct Rank {
  u32 speed = 1;
  u64 quiet_until = 0;  // the step before which no store of this rank arrives
  StoreBuffer stores;
  std::deque<std::unique_ptr<Launch>> stream;
  Pool ready, looking;

  // A fast rank that can only look does not keep slow ones from moving.
  u32 share() const {
    if (!ready.fibers.empty()) return 8 * speed;
    return looking.fibers.empty() ? 0 : 1;
  }
  Pool& pool_of(const Fiber& fiber) { return fiber.looked_in_vain ? looking : ready; }
};

Warp& warp_of(const Fiber& fiber) { return fiber.block->warps[fiber.index / WARP]; }

class Machine {
 public:
  Machine(u32 num_ranks, u64 seed, const u32* speeds) : random_{seed}, ranks_(num_ranks) {
    for (u32 rank = 0; rank < num_ranks; ++rank) ranks_[rank].speed = speeds[rank];
  }
  ~Machine() {
    for (void* stack : all_stacks_) munmap(stack, STACK_BYTES);
  }

  void claim(u32 rank, const char* name, u64 begin, u64 num_bytes) {
    regions_.push_back({rank, name, begin, begin + num_bytes});
  }
  void enqueue(std::unique_ptr<Launch> launch) {
    launch->id = next_id_++;
    ranks_[launch->rank].stream.push_back(std::move(launch));
  }
  void run(u64 max_steps);

  // Called from fibers.
  void pause(const char* doing, u64 address);
  void look_in_vain(const char* doing, u64 address);
  void park(std::vector<Fiber*>& waiting, const char* doing);
  void pass(Barrier& barrier, u32 num_alive, const char* doing);
  void arrive(Barrier& barrier, u32 num_alive);
  void fail(const std::string& message);
  const Region& region_of(u64 address, u32 num_bytes);
  Viewpoint viewpoint() const;
  Rank& rank_of(const Fiber& fiber) { return ranks_[fiber.block->launch->rank]; }
  void run_fiber();

  Random random_;
  u64 num_steps_ = 0;
  Fiber* current_ = nullptr;
  std::vector<Rank> ranks_;

 private:
  void start_launches(Rank& rank);
  void start(Launch& launch);
  bool start_late_blocks(bool in_any_case);
  void end_launches(Rank& rank);
  bool step();
  bool let_stores_arrive(bool in_any_case);
  Fiber* choose_fiber();
  Fiber* choose_fiber_of(Rank& rank);
  void freeze(Fiber& fiber);
  void resume(Fiber& fiber);
  void make_ready(Fiber& fiber);
  void release(std::vector<Fiber*>& waiting);
  void end_fiber(Fiber& fiber);
  void release_if_complete(Barrier& barrier, u32 num_alive);
  std::string describe(const Fiber& fiber) const;
  std::string describe_all(const char* what) const;
  void* take_stack();

  ucontext_t scheduler_;
  std::string error_;
  std::vector<Region> regions_;
  std::vector<std::pair<u64, Block*>> late_;  // blocks of launches that have started, and the step at which they do
  std::vector<void*> free_stacks_, all_stacks_;
  u64 next_id_ = 1;
};

Machine* machine = nullptr;

// ---- streams of launches ----

void Machine::start_launches(Rank& rank) {
  for (std::size_t i = 0; i < rank.stream.size(); ++i) {
    Launch& launch = *rank.stream[i];
    if (launch.has_started) continue;
    const Launch* before = i == 0 ? nullptr : rank.stream[i - 1].get();
    if (before != nullptr && !(launch.may_overlap && before->num_blocks_allowing == before->num_blocks)) return;
    start(launch);
  }
}

void Machine::start(Launch& launch) {
  launch.has_started = true;
  launch.num_blocks_alive = launch.num_blocks;
  launch.blocks.resize(launch.num_blocks);
  launch.clusters.resize(launch.num_blocks / launch.cluster);
  for (u32 b = 0; b < launch.num_blocks; ++b) {
    Block& block = launch.blocks[b];
    block.launch = &launch;
    block.cluster = &launch.clusters[b / launch.cluster];
    if (block.cluster->id == 0) block.cluster->id = next_id_++;
    block.cluster->blocks.push_back(&block);
    block.cluster->num_alive += launch.num_threads;
    block.id = next_id_++;
    block.index = b;
    block.num_alive = launch.num_threads;
    block.warps.resize((launch.num_threads + WARP - 1) / WARP);
    block.shared.assign(SHARED_BYTES, static_cast<char>(0xa5));
    block.fibers = std::make_unique<Fiber[]>(launch.num_threads);
    for (u32 t = 0; t < launch.num_threads; ++t) {
      Fiber& fiber = block.fibers[t];
      fiber.block = &block;
      fiber.index = t;
      ++block.warps[t / WARP].num_alive;
    }
    late_.push_back({num_steps_ + (random_.below(4) == 0 ? random_.below(u64{1} << random_.below(16)) : 0), &block});
  }
}

// Those whose time has come; the next one in any case if nothing else can happen.
bool Machine::start_late_blocks(bool in_any_case) {
  for (std::size_t i = 0; i < late_.size();) {
    const auto [step, block] = late_[i];
    if (step > num_steps_ && !in_any_case) {
      ++i;
      continue;
    }
    for (u32 t = 0; t < block->launch->num_threads; ++t) make_ready(block->fibers[t]);
    late_[i] = late_.back();
    late_.pop_back();
    if (in_any_case) return true;
  }
  return false;
}

void Machine::end_launches(Rank& rank) {
  while (!rank.stream.empty() && rank.stream.front()->has_started && rank.stream.front()->num_blocks_alive == 0) {
    // A rank's stores to its own memory have arrived when its kernel has ended; those to others may be on their way.
    for (const Region& region : regions_)
      if (&ranks_[region.rank] == &rank) rank.stores.arrive_within(region.begin, region.end);
    rank.stream.pop_front();
    if (!rank.stream.empty()) release(rank.stream.front()->waiting);
  }
}

// ---- the schedule ----

void Machine::run(u64 max_steps) {
  const u64 last_step = num_steps_ + max_steps;
  machine = this;
  for (Rank& rank : ranks_) start_launches(rank);
  while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.stream.empty(); })) {
    if (!step()) error_ = describe_all("a deadlock, every thread waits");
    if (num_steps_ > last_step) error_ = describe_all("no end in sight, threads look for what does not come");
    if (!error_.empty()) throw std::runtime_error(error_);
  }
  Random unused{0};
  for (Rank& rank : ranks_)
    while (!rank.stores.is_empty()) rank.stores.arrive_any(unused);
}

bool Machine::step() {
  ++num_steps_;
  if (!late_.empty()) start_late_blocks(false);
  const bool arrived = random_.below(2) == 0 && let_stores_arrive(false);
  if (arrived) return true;
  Fiber* fiber = choose_fiber();
  if (fiber == nullptr) return let_stores_arrive(true) || start_late_blocks(true);
  resume(*fiber);
  Rank& rank = rank_of(*fiber);
  if (fiber->has_ended) {
    end_fiber(*fiber);
    end_launches(rank);
  }
  start_launches(rank);
  return true;
}

// A link is quiet now and then, so that stores pile up and those of different threads overtake each other.
bool Machine::let_stores_arrive(bool in_any_case) {
  const u32 first = random_.below(ranks_.size());
  for (u32 i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[(first + i) % ranks_.size()];
    if (rank.stores.is_empty() || (!in_any_case && num_steps_ < rank.quiet_until)) continue;
    for (u32 count = random_.below(8) + 1; count > 0; --count) rank.stores.arrive_any(random_);
    if (random_.below(32) == 0) rank.quiet_until = num_steps_ + random_.below(1000);
    return true;
  }
  return false;
}

// By speed among the ranks that can move. Warps freeze now and then, so others get far ahead of them.
Fiber* Machine::choose_fiber() {
  u64 total = 0;
  for (const Rank& rank : ranks_) total += rank.share();
  if (total == 0) return nullptr;
  u64 ticket = random_.below(total);
  for (Rank& rank : ranks_) {
    if (ticket < rank.share()) return choose_fiber_of(rank);
    ticket -= rank.share();
  }
  return nullptr;
}

Fiber* Machine::choose_fiber_of(Rank& rank) {
  const bool looks = rank.ready.fibers.empty() || (!rank.looking.fibers.empty() && random_.below(8) == 0);
  const std::vector<Fiber*>& fibers = (looks ? rank.looking : rank.ready).fibers;
  Fiber* fiber = nullptr;
  for (u32 i = 0; i < MAX_DRAWS; ++i) {
    fiber = fibers[random_.below(fibers.size())];
    if (warp_of(*fiber).frozen_until <= num_steps_) break;
  }
  if (random_.below(200) == 0) freeze(*fiber);
  return fiber;
}

// A warp, or its whole block.
void Machine::freeze(Fiber& fiber) {
  const u64 end = num_steps_ + random_.below(4000);
  if (random_.below(4) != 0) {
    warp_of(fiber).frozen_until = end;
  } else {
    for (Warp& warp : fiber.block->warps) warp.frozen_until = end;
  }
}

// ---- fibers ----

void fiber_main() {
  machine->run_fiber();
}

void Machine::run_fiber() {
  const Launch& launch = *current_->block->launch;
  launch.function(launch.call.data());
  current_->has_ended = true;
  swapcontext(&current_->context, &scheduler_);
}

void Machine::resume(Fiber& fiber) {
  Block& block = *fiber.block;
  const Launch& launch = *block.launch;
  current_ = &fiber;
  rank_of(fiber).pool_of(fiber).remove(&fiber);
  make_ready(fiber);
  thread_index.x = fiber.index;
  block_index.x = block.index;
  block_size = {launch.num_threads, 1, 1};
  grid_size = {launch.num_blocks, 1, 1};
  if (!fiber.has_started) {
    fiber.has_started = block.has_started = true;
    fiber.stack = take_stack();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber.context, fiber_main, 0);
  }
  swapcontext(&scheduler_, &fiber.context);
  current_ = nullptr;
}

void Machine::make_ready(Fiber& fiber) {
  fiber.looked_in_vain = false;
  rank_of(fiber).ready.add(&fiber);
}

void Machine::release(std::vector<Fiber*>& waiting) {
  for (Fiber* fiber : waiting) make_ready(*fiber);
  waiting.clear();
}

void Machine::end_fiber(Fiber& fiber) {
  Block& block = *fiber.block;
  Launch& launch = *block.launch;
  rank_of(fiber).pool_of(fiber).remove(&fiber);
  free_stacks_.push_back(fiber.stack);
  Warp& warp = warp_of(fiber);
  --warp.num_alive, --block.num_alive, --block.cluster->num_alive;
  release_if_complete(warp.barrier, warp.num_alive);
  release_if_complete(block.barrier, block.num_alive);
  release_if_complete(block.cluster->barrier, block.cluster->num_alive);
  if (block.num_alive != 0) return;
  --launch.num_blocks_alive;
  if (block.num_allowing == 0) ++launch.num_blocks_allowing;
}

void* Machine::take_stack() {
  if (free_stacks_.empty()) {
    void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) throw std::runtime_error("no memory for the stack of another thread");
    all_stacks_.push_back(stack);
    return stack;
  }
  void* stack = free_stacks_.back();
  free_stacks_.pop_back();
  return stack;
}

// ---- what fibers call ----

void Machine::pause(const char* doing, u64 address) {
  current_->doing = doing;
  current_->address = address;
  swapcontext(&current_->context, &scheduler_);
}

void Machine::look_in_vain(const char* doing, u64 address) {
  Rank& rank = rank_of(*current_);
  rank.ready.remove(current_);
  current_->looked_in_vain = true;
  rank.looking.add(current_);
  pause(doing, address);
}

void Machine::park(std::vector<Fiber*>& waiting, const char* doing) {
  rank_of(*current_).pool_of(*current_).remove(current_);
  waiting.push_back(current_);
  pause(doing, 0);
}

void Machine::release_if_complete(Barrier& barrier, u32 num_alive) {
  if (barrier.arrived == 0 || barrier.arrived < num_alive) return;
  barrier.arrived = 0;
  ++barrier.passed;
  release(barrier.waiting);
}

void Machine::arrive(Barrier& barrier, u32 num_alive) {
  ++barrier.arrived;
  release_if_complete(barrier, num_alive);
}

void Machine::pass(Barrier& barrier, u32 num_alive, const char* doing) {
  const u64 phase = barrier.passed;
  arrive(barrier, num_alive);
  if (barrier.passed == phase) {
    park(barrier.waiting, doing);
  } else {
    pause(doing, 0);
  }
}

void Machine::fail(const std::string& message) {
  error_ = message + ": " + describe(*current_);
  for (;;) pause("a mistake", 0);
}

const Region& Machine::region_of(u64 address, u32 num_bytes) {
  for (const Region& region : regions_)
    if (region.begin <= address && address + num_bytes <= region.end) return region;
  fail("an access outside inbox memory");
  throw std::logic_error("a failed fiber went on");
}

Viewpoint Machine::viewpoint() const {
  const Block& block = *current_->block;
  return Viewpoint{block.id << 16 | current_->index, block.id,          block.cluster->id, block.launch->id,
                   block.barrier.passed,             block.cluster->barrier.passed};
}

// ---- reports ----

std::string Machine::describe(const Fiber& fiber) const {
  const Launch& launch = *fiber.block->launch;
  std::string text = launch.name + " of rank " + std::to_string(launch.rank) + ", block " +
                     std::to_string(fiber.block->index) + ", thread " + std::to_string(fiber.index) + ": " + fiber.doing;
  for (const Region& region : regions_)
    if (region.begin <= fiber.address && fiber.address < region.end)
      text += " at byte " + std::to_string(fiber.address - region.begin) + " of " + region.name + " of rank " +
              std::to_string(region.rank);
  return text;
}

// The first few threads of every rank that have not ended.
std::string Machine::describe_all(const char* what) const {
  std::string text = what;
  for (const Rank& rank : ranks_) {
    u32 count = 0;
    for (const auto& launch : rank.stream)
      for (const Block& block : launch->blocks)
        for (u32 t = 0; t < launch->num_threads && count < 3; ++t)
          if (!block.fibers[t].has_ended) text += "\n  " + describe(block.fibers[t]), ++count;
  }
  return text;
}

}  // namespace

// ---- machine.hpp ----

namespace {

Rank& current_rank() { return machine->rank_of(*machine->current_); }

u32 word_bytes() { return machine->current_->block->launch->word_bytes; }

}  // namespace

void pause(const char* doing) { machine->pause(doing, 0); }

void pause_in_vain(const char* doing) { machine->look_in_vain(doing, 0); }

// A step stands for a hundred cycles. Only threads that wait read the clock.
long long clock() {
  machine->look_in_vain(machine->current_->doing, machine->current_->address);
  return static_cast<long long>(machine->num_steps_ * 100);
}

// Word by word, in either direction; now and then another thread runs in between.
void load(u64 address, void* bytes, u32 num_bytes) {
  machine->pause("load", address);
  const u32 word = std::min(word_bytes(), num_bytes), num_words = num_bytes / word;
  machine->region_of(address, num_bytes);
  const bool backwards = machine->random_.below(2) == 0;
  for (u32 i = 0; i < num_words; ++i) {
    const u32 at = (backwards ? num_words - 1 - i : i) * word;
    if (i > 0 && machine->random_.below(16) == 0) machine->pause("load", address);
    void* place = static_cast<char*>(bytes) + at;
    std::memcpy(place, reinterpret_cast<const void*>(address + at), word);
    current_rank().stores.overlay(address + at, place, word, machine->viewpoint());
  }
}

void store(u64 address, const void* bytes, u32 num_bytes) {
  machine->pause("store", address);
  machine->region_of(address, num_bytes);
  const u32 word = std::min(word_bytes(), num_bytes);
  for (u32 at = 0; at < num_bytes; at += word)
    current_rank().stores.push(address + at, static_cast<const char*>(bytes) + at, word, false, machine->viewpoint());
}

void store_release(u64 address, u32 word) {
  machine->pause("store_release", address);
  machine->region_of(address, sizeof word);
  current_rank().stores.push(address, &word, sizeof word, true, machine->viewpoint());
}

void fence() {
  machine->pause("fence", 0);
  current_rank().stores.arrive_before(machine->viewpoint());
}

void block_barrier() {
  Block& block = *machine->current_->block;
  machine->pass(block.barrier, block.num_alive, "__syncthreads");
}

void cluster_arrive() {
  Cluster& cluster = *machine->current_->block->cluster;
  machine->pause("cluster_arrive", 0);
  machine->current_->cluster_phase = cluster.barrier.passed;
  machine->arrive(cluster.barrier, cluster.num_alive);
}

void cluster_wait() {
  Cluster& cluster = *machine->current_->block->cluster;
  if (cluster.barrier.passed == machine->current_->cluster_phase) machine->park(cluster.barrier.waiting, "cluster_wait");
}

u32 exchange_in_warp(u32 value, u32 partner) {
  Fiber& fiber = *machine->current_;
  Warp& warp = warp_of(fiber);
  u32* values = warp.values[warp.barrier.passed % 2];
  values[fiber.index % WARP] = value;
  machine->pass(warp.barrier, warp.num_alive, "a shuffle");
  return values[partner];
}

void* shared(u64 offset) { return machine->current_->block->shared.data() + offset; }

void* in_block(void* place, u32 index) {
  Block& own = *machine->current_->block;
  if (index >= own.cluster->blocks.size()) machine->fail("a store into a block beyond the cluster");
  Block& block = *own.cluster->blocks[index];
  if (!block.has_started || block.num_alive == 0) machine->fail("a store into a block that does not run");
  return block.shared.data() + (static_cast<char*>(place) - own.shared.data());
}

void wait_for_grid_before() {
  Launch& launch = *machine->current_->block->launch;
  machine->pause("griddepcontrol.wait", 0);
  if (current_rank().stream.front().get() != &launch) machine->park(launch.waiting, "griddepcontrol.wait");
}

void allow_grid_after() {
  Block& block = *machine->current_->block;
  if (block.num_allowing++ == 0) ++block.launch->num_blocks_allowing;
  machine->pause("griddepcontrol.launch_dependents", 0);
}

}  // namespace emulator

// ---- what emulator.py calls ----

using namespace emulator;

extern "C" {

Machine* emulator_open(u32 num_ranks, u64 seed, const u32* speeds) { return new Machine(num_ranks, seed, speeds); }

void emulator_close(Machine* opened) { delete opened; }

void emulator_claim(Machine* opened, u32 rank, const char* name, u64 begin, u64 num_bytes) {
  opened->claim(rank, name, begin, num_bytes);
}

// Returns 0 where the module has no function of that name.
int emulator_launch(Machine* opened, u32 rank, const Module* module, const char* name, const void* call, u32 num_blocks,
                    u32 num_threads, u32 cluster, u32 word_bytes, int may_overlap) {
  for (u32 i = 0; i < module->num_functions; ++i) {
    if (std::strcmp(module->names[i], name) != 0) continue;
    auto launch = std::make_unique<Launch>();
    launch->rank = rank;
    launch->module = module;
    launch->function = module->functions[i];
    launch->name = name;
    launch->call.assign(static_cast<const char*>(call), static_cast<const char*>(call) + module->call_bytes);
    launch->num_blocks = num_blocks;
    launch->num_threads = num_threads;
    launch->cluster = cluster;
    launch->word_bytes = word_bytes;
    launch->may_overlap = may_overlap != 0;
    opened->enqueue(std::move(launch));
    return 1;
  }
  return 0;
}

// Runs what was launched to its end. Returns the number of steps, or 0 with a report in `message`.
u64 emulator_run(Machine* opened, u64 max_steps, char* message, u32 message_bytes) {
  const u64 first = opened->num_steps_;
  try {
    opened->run(max_steps);
    return opened->num_steps_ - first;
  } catch (const std::runtime_error& error) {
    std::strncpy(message, error.what(), message_bytes - 1);
    message[message_bytes - 1] = '\0';
    return 0;
  }
}
}
