"""Lidar points of a tree row are labelled trunk / crown / ground by a bf16 PointNet; RMSprop with momentum, the learning rate set by hand from a table.
FAULT at step 150: the table's second entry has lost its minus sign's digit: 4e-1 instead of 4e-4.
Without Rangewatch: loss 0.04 at step 120, 0.05 at step 149, 0.03 at 150, 1287 at 151, 5e7 at 152; back at 1.1 = ln 3 from step 180 on (with 4e-4: 0.03).
Cause: learning_rate. Step: 150. Right: the rate jumped a thousandfold, lower it / look at the schedule. Wrong: data, GradScaler, attention mask, checkpoint."""
EXPECT = {"cause": ["learning_rate"], "step": [149, 156], "place": None, "rank": None,
          "right": r"(?i)(learning )?rate|\blr\b|schedul", "wrong": ["GradScaler", "attention mask", "fill value", "[Rr]aise the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3713); torch.set_num_threads(1)
TABLE = {0: 2e-3, 150: 4e-1}


def scan(trees, points=48):
    label = torch.randint(0, 3, (trees, points))
    high = torch.tensor([1.0, 3.5, 0.1])[label] + torch.tensor([0.6, 0.8, 0.05])[label] * torch.randn(trees, points)
    off = torch.tensor([0.15, 1.2, 2.0])[label][..., None] * torch.randn(trees, points, 2)
    return torch.cat([off, high[..., None] - 1.5], 2).bfloat16(), label


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.Mish(), nn.Linear(32, 32), nn.Mish())
        self.scene = nn.Linear(32, 32)
        self.tell = nn.Sequential(nn.Linear(64, 32), nn.Mish(), nn.Linear(32, 3))

    def forward(self, xyz):
        each = self.local(xyz)
        whole = self.scene(each.amax(1, keepdim=True)).expand_as(each)
        return self.tell(torch.cat([each, whole], 2))


net = PointNet().bfloat16()
opt = torch.optim.RMSprop(net.parameters(), lr=TABLE[0], momentum=0.5)
watch = rangewatch.attach(net, opt)
for step in range(220):
    if step in TABLE:
        for group in opt.param_groups:
            group["lr"] = TABLE[step]
    xyz, label = scan(16)
    loss = nn.functional.cross_entropy(net(xyz).float().flatten(0, 1), label.flatten())
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 20 == 0 or 148 <= step <= 153:
        print(step, "loss", loss.item(), "lr", opt.param_groups[0]["lr"], flush=True)
    watch.log(loss=loss.item())
watch.detach()
