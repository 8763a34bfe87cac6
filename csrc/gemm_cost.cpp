// A small cost model that ranks tiles.  It counts cycles of the busiest SM; only the order of its
// answers matters, so it leaves out whatever all candidates share.
#include <algorithm>

#include "gemm_fill.h"
#include "gemm_plan.h"

namespace deepasm {
namespace {

struct CostModel {
  // wgmma m64nNk16 on 16-bit inputs takes N/2 cycles: 64 * N * 16 / (N / 2).
  double sm90_macs_per_cycle = 2048;
  // mma.sync on an A100 or a newer data-centre part, and on the consumer parts (8.6, 8.9, 12.x)
  // whose fp32-accumulate rate is half of that or less.
  double sm80_macs_per_cycle = 1024;
  double sm80_consumer_macs_per_cycle = 512;
  // What mma.sync code reaches of those rates with one block on an SM, and with more, which hide
  // each other's latency.
  double sm80_efficiency_alone = 0.5;
  double sm80_efficiency = 0.7;
  // One SM's share of L2 bandwidth when all SMs read operands (64 B per clock measured).
  double l2_bytes_per_cycle = 64;
  // From launch to the first full stage: descriptor fetch, first TMA loads from L2 or DRAM.
  double sm90_fill = 1500;
  double sm80_fill = 2000;
  // Epilogue of a 128x256 tile that nothing overlaps: 10,550 cycles were measured for 8,192 of
  // wgmma.  A cooperative kernel pays it per tile, ping-pong only after its last tile.
  double coop_epilogue = 2300;
  double sm80_epilogue = 2600;
  double epilogue_tile = 128 * 256;
  // Ping-pong: handing the tensor core over between two tiles.
  double pingpong_handover = 60;
  // Ordinary element-wise loads cannot keep the tensor core busy.
  double any_loads_factor = 8;
};

constexpr CostModel kModel;

bool is_consumer(const PlanTarget& target) {
  return target.cc_major == 12 || (target.cc_major == 8 && target.cc_minor != 0);
}

}  // namespace

int blocks_per_sm(int variant, const PlanTarget& target) {
  const KernelInfo& kernel = kernel_info(variant);
  if (kernel.tier == 90) return 1;  // sized to fill an SM
  constexpr int kReserved = 1024;   // shared memory that the system takes per block
  int smem = (target.smem_per_block + kReserved) / (kernel.smem + kReserved);
  int regs = 65536 / (std::max((kernel.regs + 7) / 8 * 8, 8) * kernel.threads);
  int threads = (is_consumer(target) ? 1536 : 2048) / kernel.threads;
  return std::max(1, std::min({smem, regs, threads}));
}

double gemm_cost(int variant, int64_t m, int64_t n, int64_t k, int64_t batch,
                 const PlanTarget& target) {
  const CostModel& model = kModel;
  const KernelInfo& kernel = kernel_info(variant);
  const KernelTraits& traits = kernel_traits(variant);
  int sms = target.max_sms > 0 ? std::min(target.max_sms, target.sms) : target.sms;
  double tiles = static_cast<double>(tile_count(m, kernel.bm)) * tile_count(n, kernel.bn) * batch;
  // Tiles of the busiest SM.
  double waves = static_cast<double>(static_cast<int64_t>((tiles + sms - 1) / sms));
  double k_blocks = tile_count(k, kernel.bk);
  double area = static_cast<double>(kernel.bm * kernel.bn);
  double macs = area * kernel.bk;
  double load = (kernel.bm + kernel.bn) * kernel.bk * 2 * (1 / model.l2_bytes_per_cycle);
  double tile_share = area * (1 / model.epilogue_tile);
  if (kernel.tier == 90) {
    double mainloop = k_blocks * std::max(macs * (1 / model.sm90_macs_per_cycle), load);
    double epilogue = model.coop_epilogue * tile_share;
    if (traits.pingpong) {
      return model.sm90_fill + waves * (mainloop + model.pingpong_handover) + epilogue;
    }
    return model.sm90_fill + waves * (mainloop + epilogue);
  }
  double rate =
      is_consumer(target) ? model.sm80_consumer_macs_per_cycle : model.sm80_macs_per_cycle;
  // Blocks that share an SM also share its tensor cores, but hide each other's latency.
  bool shared = tiles > sms && blocks_per_sm(variant, target) > 1;
  rate *= shared ? model.sm80_efficiency : model.sm80_efficiency_alone;
  double mainloop = k_blocks * std::max(macs / rate, load);
  if (traits.any_strides) mainloop *= model.any_loads_factor;
  return model.sm80_fill + waves * (mainloop + model.sm80_epilogue * tile_share);
}

}  // namespace deepasm
