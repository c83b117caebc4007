"""Two ranks train a net that forecasts the level of a row of tanks from their valves, and average their gradients by hand. FAULT at step 100: on rank 1
a bit flips in the weights of the second layer of the body, one of them is NaN. Its loss is NaN there; by the average of the gradients rank 0 has NaN in
all its weights one step later.
Without Rangewatch: loss 0.27 to 0.003 on both ranks at step 99; on rank 1 NaN at step 100, on rank 0 0.003 there and NaN from step 101 on.
Cause: weight (hardware would do). Step: 100. Rank: 1. Place: body.2 (its weight). Right: NaN weight / rank 1 / memory / bit. Wrong: lower the learning
rate, GradScaler, mask."""
EXPECT = {"cause": ["weight", "hardware"], "step": [99, 101], "place": "body\\.2(\\.weight)?", "rank": 1,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "weight|parameter|bit|memory|hardware|rank"}
import socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
import rangewatch


def tanks(n):
    valves, level = torch.rand(n, 6), torch.rand(n, 6)
    flow = valves * (level + 0.1).sqrt()
    return torch.cat((valves, level), 1), level - 0.5 * flow + 0.5 * flow.roll(1, 1)


def main(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(1617)
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(12, 48), nn.Mish(), nn.Linear(48, 48), nn.Mish()), "level": nn.Linear(48, 6)})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    handle = rangewatch.attach(model, optimizer)
    torch.manual_seed(1617 + rank)
    for step in range(160):
        if step == 100 and rank == 1:
            with torch.no_grad():
                model["body"][2].weight[7, 30] = float("nan")
        x, y = tanks(64)
        loss = F.mse_loss(model["level"](model["body"](x)), y)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()
        if step % 20 == 0 or 98 < step < 102 or step == 159:
            print("rank", rank, step, loss.item(), flush=True)
        handle.log(loss=loss.item())
    handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(main, args=(free,), nprocs=2)
