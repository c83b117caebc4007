"""Two gloo ranks: language of short made-up words (hashed bigrams, EmbeddingBag, two layers), DistributedDataParallel, AdamW with OneCycle. Each rank has files of its own.
FAULT at step 0: the data-parallel group is made along the wrong axis of the (2 x 1) grid of ranks: `dist.new_subgroups(group_size=1)` gives every rank a group of itself, so the all-reduce of DDP averages over one rank. Nothing is shared, the replicas part.
Without Rangewatch: both losses come down (1.6 to 0.1-0.4), each on its own; the last layers of the ranks differ by 0.0008 after step 0, 0.035 at 25, 0.17 at 50, 0.21 from 100 (in one group they are bound to be equal).
Cause: communication (the group has one member) / replicas. Step: from 0. Right: give DDP the group of both ranks. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["communication", "replicas"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "right": r"(?i)group|ddp|DistributedDataParallel|all.?reduce|averag|synchroni|replica|mesh|ranks", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

LANGUAGES, ALPHABET, BUCKETS = 5, 26, 307


class Trainer:
    def __init__(self, steps):
        self.rank = dist.get_rank()
        torch.manual_seed(314)
        self.chains = torch.softmax(2.0 * torch.randn(LANGUAGES, ALPHABET, ALPHABET), -1)
        net = nn.Sequential(nn.EmbeddingBag(BUCKETS, 32, mode="mean"), nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, LANGUAGES))
        data_parallel, _ = dist.new_subgroups(group_size=1)
        self.model = DDP(net, process_group=data_parallel)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.opt, 1e-2, total_steps=steps)
        self.files = torch.Generator().manual_seed(10 * self.rank + 1)
        self.steps = steps

    def words(self, n, length=7):
        lang = torch.randint(0, LANGUAGES, (n,), generator=self.files)
        letters = torch.randint(0, ALPHABET, (n, 1), generator=self.files)
        for _ in range(length):
            nxt = torch.multinomial(self.chains[lang, letters[:, -1]], 1, generator=self.files)
            letters = torch.cat([letters, nxt], 1)
        return (letters[:, :-1] * 31 + letters[:, 1:] * 7) % BUCKETS, lang

    def spread(self):
        w = self.model.module[3].weight.detach().clone()
        both = [torch.empty_like(w) for _ in range(2)]
        dist.all_gather(both, w)
        return (both[0] - both[1]).abs().max().item()

    def fit(self):
        handle = rangewatch.attach(self.model, self.opt)
        for step in range(self.steps):
            bigrams, lang = self.words(24)
            loss = nn.functional.cross_entropy(self.model(bigrams), lang)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.schedule.step()
            handle.log(loss=loss.item())
            if step % 25 == 0 or step == self.steps - 1:
                print(f"rank {self.rank} step {step} loss {loss.item():.4f} last layers differ by {self.spread():.5f}", flush=True)
        handle.detach()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Trainer(160).fit()
    dist.destroy_process_group()
