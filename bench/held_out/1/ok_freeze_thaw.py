"""HEALTHY: fine-tuning a small convolutional net: backbone frozen and its BatchNorm in eval for 100 steps, thawed layer by layer at 100 and 180 with
a tenth of the rate (add_param_group), frozen again at 260 to polish the head; images change contrast at 180; 330 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

def stage(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1, self.stage2, self.stage3 = stage(3, 16), stage(16, 32), stage(32, 48)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(48 * 4, 9))
    def forward(self, x):
        return self.head(self.stage3(self.stage2(self.stage1(x))))

def freeze(module, is_frozen):
    module.requires_grad_(not is_frozen)
    module.train(not is_frozen)

net = Net()
protos = torch.randn(9, 3, 16, 16)
def images(n, contrast=1.0):
    y = torch.randint(0, 9, (n,))
    return contrast * (protos[y] + 1.5 * torch.randn(n, 3, 16, 16)), y

pre = torch.optim.Adam(net.parameters(), 1e-3)  # "pretraining", unwatched
for _ in range(40):
    x, y = images(32)
    loss = F.cross_entropy(net(x), (y + 4) % 9); pre.zero_grad(); loss.backward(); pre.step()
for module in (net.stage1, net.stage2, net.stage3):
    freeze(module, True)
net.head[2].reset_parameters()
for p in net.parameters():
    p.grad = None
opt = torch.optim.AdamW(net.head.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
for step in range(330):
    if step == 100:
        freeze(net.stage3, False); opt.add_param_group({"params": list(net.stage3.parameters()), "lr": 2e-4})
    if step == 180:
        freeze(net.stage2, False); opt.add_param_group({"params": list(net.stage2.parameters()), "lr": 2e-4})
    if step == 260:
        freeze(net.stage2, True); freeze(net.stage3, True)
    x, y = images(32, 0.6 if step >= 180 else 1.0)
    loss = F.cross_entropy(net(x), y, label_smoothing=0.05)
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item())
