"""A CycleGAN between points of a circle and of an ellipse: two makers in one optimizer, two judges in another, a history of old fakes, judges frozen while the
makers are trained. The makers' loss stops falling at 1.2, the judges' stays at 0.3: neither is to win. HEALTHY.
Without Rangewatch: makers 16.7 to 1.15 (1.4 at step 60), cycle 1.47 to 0.04, judges 0.97 to 0.37 (0.27 to 0.38 from step 20 on)."""
EXPECT = {"healthy": True}
import itertools
import random
import torch
from torch import nn
import rangewatch

torch.manual_seed(835); torch.set_num_threads(1)
pick = random.Random(835)


def net(outward):
    return nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, outward))


def circle(n):
    a = torch.rand(n) * 6.28
    return torch.stack([a.cos(), a.sin()], 1) + 0.05 * torch.randn(n, 2)


def ellipse(n):
    return circle(n) * torch.tensor([1.5, 0.4]) + torch.tensor([1.0, -0.5])


nets = nn.ModuleDict({"there": net(2), "back": net(2), "judge_a": net(1), "judge_b": net(1)})
makers, judges = [nets["there"], nets["back"]], [nets["judge_a"], nets["judge_b"]]
opt_g = torch.optim.Adam(itertools.chain(*(m.parameters() for m in makers)), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(itertools.chain(*(m.parameters() for m in judges)), lr=1e-3, betas=(0.5, 0.999))
handle = rangewatch.attach(nets, [opt_g, opt_d])
history = []
for step in range(280):
    a, b = circle(64), ellipse(64)
    for p in itertools.chain(*(j.parameters() for j in judges)):
        p.requires_grad_(False)
    fake_b, fake_a = nets["there"](a), nets["back"](b)
    adversarial = ((nets["judge_b"](fake_b) - 1) ** 2).mean() + ((nets["judge_a"](fake_a) - 1) ** 2).mean()
    cycle = (nets["back"](fake_b) - a).abs().mean() + (nets["there"](fake_a) - b).abs().mean()
    g_loss = adversarial + 10 * cycle
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    for p in itertools.chain(*(j.parameters() for j in judges)):
        p.requires_grad_(True)
    history.append((fake_a.detach(), fake_b.detach()))
    history = history[-50:]
    old_a, old_b = pick.choice(history) if pick.random() < 0.5 else history[-1]
    d_loss = 0.5 * sum(((judge(real) - 1) ** 2).mean() + (judge(fake) ** 2).mean()
                       for judge, real, fake in ((nets["judge_a"], a, old_a), (nets["judge_b"], b, old_b)))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    if step % 20 == 0 or step == 279:
        print(step, "makers", g_loss.item(), "cycle", cycle.item(), "judges", d_loss.item(), flush=True)
    handle.log(loss=g_loss.item(), d_loss=d_loss.item())
handle.detach()
