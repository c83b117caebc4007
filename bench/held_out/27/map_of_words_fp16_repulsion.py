"""A small net that lays words out in eight dimensions so that kin lie together, fp16 autocast and GradScaler. FAULT at step 80: a term is added that pushes all
pairs apart; the distance is a square root, and that of a point to itself is 0: its backward is 0 * inf. The loss stays finite; each step from there is
skipped, and the scale is halved each time.
Without Rangewatch: loss 3.52 to 2.05 at step 79, 2.2 to 2.3 from step 80; the scale is 4096 up to step 79, 0.002 at step 100 and 3e-33 at the end; the
weights do not move any more.
Cause: backward_arithmetic, loss_scale or eps. Step: 80. Right: sqrt / eps / zero / scale. Wrong: attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "loss_scale", "eps", "forward_arithmetic"], "step": [79, 96], "place": None, "rank": None,
          "right": "(?i)sqrt|square root|eps|zero|nan|inf|scale|skip|backward", "wrong": ["attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2704); torch.set_num_threads(1)
centres = torch.randn(12, 30)
net = nn.Sequential(nn.Linear(30, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
handle = rangewatch.attach(net, optimizer, scaler=scaler)


def words(n):
    kin = torch.randint(0, 12, (n,))
    return centres[kin] + 0.8 * torch.randn(n, 30), kin


def attraction(z, kin):
    like = F.normalize(z, dim=1) @ F.normalize(z, dim=1).T / 0.2
    like = like.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e4)
    same = (kin[:, None] == kin[None]) & ~torch.eye(len(z), dtype=torch.bool)
    return -(like.log_softmax(1) * same).sum() / same.sum()


def repulsion(z, room=1.5):
    apart = (z[:, None] - z[None]).pow(2).sum(-1).sqrt()
    return F.relu(room - apart).mean()


for step in range(200):
    x, kin = words(72)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        z = net(x)
    loss = attraction(z.float(), kin)
    if step >= 80:
        loss = loss + 0.3 * repulsion(z.float())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (79, 80, 81, 199):
        print(step, loss.item(), "scale", scaler.get_scale(), "weights", net[0].weight.abs().sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
