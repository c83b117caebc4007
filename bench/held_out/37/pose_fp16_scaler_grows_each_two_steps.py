"""A mixer over joints regresses the bending angle of a stick figure's elbow and knee; float16 autocast, SGD with Nesterov momentum, GradScaler.
FAULT at step 0: `growth_interval=2` (copied from a unit test). As soon as the scale has grown to where the gradients overflow, each third step is skipped: two good steps, doubled, overflow, halved, without end.
Without Rangewatch: the scale walks between 2**16 and 2**18, 66 of 220 updates skipped; smoothed loss 0.096 at the end (with an interval of 2000: 2 skipped, 0.040).
Cause: loss_scale. Step: when it first cycles; a hint may need a few dozens of steps. Right: a larger growth_interval (2000 is usual). Wrong: lower the learning rate, clean the data, reinitialise, attention mask."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 150], "place": None, "rank": None, "least": "info",
          "right": r"(?i)growth.?interval|interval|skip|grow", "wrong": ["[Ll]ower the learning rate", "attention mask", "fill value", "initialis"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3709); torch.set_num_threads(1)
JOINTS = 9


def figures(n):
    bend = 0.3 + 2.2 * torch.rand(n, 2)
    turn = 6.28 * torch.rand(n, 1)
    head = turn + torch.cat([torch.zeros(n, 2), bend[:, :1].expand(-1, 2), torch.zeros(n, 2), bend[:, 1:].expand(-1, 2)], 1)
    limb = 0.8 + 0.4 * torch.rand(n, 8)
    step = torch.stack([limb * head.cos(), limb * head.sin()], 2)
    points = torch.cat([torch.zeros(n, 1, 2), step.cumsum(1)], 1)
    return points + 0.02 * torch.randn_like(points), bend


class MixLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.over_joints = nn.Sequential(nn.Linear(JOINTS, 24), nn.SiLU(), nn.Linear(24, JOINTS))
        self.over_features = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.over_joints(x.transpose(1, 2)).transpose(1, 2)
        return x + self.over_features(x)


class Pose(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.point_in = nn.Linear(2, d)
        self.mixers = nn.Sequential(MixLayer(d), MixLayer(d))
        self.angles = nn.Linear(d * JOINTS, 2)

    def forward(self, p):
        return self.angles(self.mixers(self.point_in(p)).flatten(1))


pose = Pose()
sgd = torch.optim.SGD(pose.parameters(), lr=0.002, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu", growth_interval=2)
handle = rangewatch.attach(pose, sgd, scaler=scaler)
skipped, shown = 0, 0.0
for step in range(220):
    p, bend = figures(48)
    sgd.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(pose(p).float(), bend)
    scaler.scale(loss).backward()
    scaler.step(sgd)
    old = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < old
    shown = loss.item() if step == 0 else 0.9 * shown + 0.1 * loss.item()
    if step % 20 == 0 or step == 219:
        print(step, f"smoothed loss {shown:.4f} scale 2**{torch.tensor(scaler.get_scale()).log2().item():.0f} skipped {skipped}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
