"""Two gloo ranks under DDP: trajectories of road users, an LSTM predicts the next displacement, which is multiplied by how much the agent
moves (1, or 1e-20 for one that is parked), and its heading, `angle` of it as a complex number, is part of the loss. FAULT at step 110: the first parked
agent, in rank 1's shard: the angle is finite, its derivative divides by the square of 1e-20, which is 0 in float32: NaN. The all_reduce gives it to both
ranks, from the next step on all is NaN. Report: pytorch/pytorch#98276 (angle gives NaN gradients close to (0, 0)), e3nn/e3nn#112.
Cause: backward_arithmetic, step 110, rank 1, at `head`. Right: the backward of angle / a division by zero there. Wrong: learning rate, mask, precision."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [110, 110], "place": "head(\\..*)?", "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler"], "right": "backward|atan2|angle|divi"}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.inp = nn.Linear(3, hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def forward(self, track, moving):
        h, _ = self.lstm(torch.relu(self.inp(torch.cat([track, moving[:, None, None].expand(-1, track.shape[1], 1)], -1))))
        return self.head(h[:, -1]) * moving[:, None]


def tracks(step, rank, gen, n=32, length=10):
    angle = 6.28 * torch.rand(n, 1, generator=gen)
    turn = 0.2 * torch.randn(n, 1, generator=gen)
    a = angle + turn * torch.arange(length + 1)
    speed = 0.5 + torch.rand(n, 1, 1, generator=gen)
    moves = speed * torch.stack([a.cos(), a.sin()], -1)
    moving = torch.ones(n)
    if step >= 110 and rank == 1:
        moving[5] = 1e-20
        moves[5] = 0.0
    return moves[:, :-1] + 0.02 * torch.randn(n, length, 2, generator=gen), moves[:, -1], moving


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(Forecaster())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    watch = rangewatch.attach(model, opt)
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(200):
        track, target, moving = tracks(step, rank, gen)
        pred = model(track, moving)
        heading = torch.angle(torch.view_as_complex(pred)) - torch.atan2(target[:, 1], target[:, 0])
        loss = (pred - target).abs().mean() + 0.3 * (1 - heading.cos()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        watch.log(loss=loss.item())
        if step % 20 == 0 or 108 <= step < 113:
            print(rank, step, round(loss.item(), 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
