"""HEALTHY: timm-like: small ConvNet, mixup or cutmix on half of the batches, label smoothing, weight decay groups, one-cycle schedule with a
high peak and momentum cycling, eval in inference_mode and once without any (train mode off, grads on), on harder images in between; 300 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(
    nn.Conv2d(3, 24, 4, 4), nn.BatchNorm2d(24), nn.Hardswish(), nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.Hardswish(),
    nn.Conv2d(24, 48, 1), nn.BatchNorm2d(48), nn.Hardswish(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(192, 12))
decay = [p for p in net.parameters() if p.ndim > 1]
opt = torch.optim.SGD([{"params": decay, "weight_decay": 5e-4}, {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0}], 0.1, momentum=0.9, nesterov=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.4, total_steps=300)
watch = rangewatch.attach(net, opt)
protos = torch.randn(12, 3, 24, 24)
def images(n, noise=1.5):
    y = torch.randint(0, 12, (n,))
    return (protos[y] + noise * torch.randn(n, 3, 24, 24)) * (torch.rand(n, 1, 1, 1) + 0.5), y
for step in range(300):
    x, y = images(48)
    target = F.one_hot(y, 12).float()
    if torch.rand(()) < 0.5:
        order, lam = torch.randperm(48), torch.distributions.Beta(0.4, 0.4).sample().item()
        if torch.rand(()) < 0.5:
            x = lam * x + (1 - lam) * x[order]
        else:
            side = int(24 * (1 - lam) ** 0.5)
            x = x.clone(); x[:, :, :side, :side] = x[order][:, :, :side, :side]
            lam = 1 - side * side / 576
        target = lam * target + (1 - lam) * target[order]
    loss = F.cross_entropy(net(x), target, label_smoothing=0.1)
    opt.zero_grad(); loss.backward(); opt.step(); sched.step()
    watch.log(loss=loss.item(), lr=sched.get_last_lr()[0])
    if step % 60 == 59:
        net.eval()
        x, y = images(128, noise=4.0)
        if step == 179:
            accuracy = (net(x).argmax(1) == y).float().mean()
        else:
            with torch.inference_mode():
                accuracy = (net(x).argmax(1) == y).float().mean()
        net.train()
        print(step, loss.item(), accuracy.item())
